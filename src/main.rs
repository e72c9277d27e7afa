fn main() -> std::process::ExitCode {
    stowfs::cli::main()
}
