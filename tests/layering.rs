//! Imports go down only, and files stay small. ARCHITECTURE.md has the map of the layers.

use std::path::{Path, PathBuf};

/// Each top-level module of the crate and its layer. A module may use its own layer and lower ones.
const LAYERS: &[(&str, u8)] = &[
    ("base", 0),
    ("format", 1),
    ("store", 2),
    ("segment", 3),
    ("index", 3),
    ("cache", 3),
    ("stream", 4),
    ("log", 4),
    ("lanes", 4),
    ("read", 4),
    ("upkeep", 5),
    ("volume", 6),
    ("fs", 7),
    ("admin", 7),
    ("fuse", 8),
    ("cli", 8),
];

const LINES_MAX: usize = 500;
/// Of files named tests.rs.
const TEST_LINES_MAX: usize = 800;

fn layer(module: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, layer)| *layer)
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    sources(&root.join("src"), &mut paths);
    paths.sort();
    let read = |p: PathBuf| {
        let text = std::fs::read_to_string(&p).unwrap();
        (p.strip_prefix(root).unwrap().to_path_buf(), text)
    };
    paths.into_iter().map(read).collect()
}

/// The top-level module that a file belongs to; none for lib.rs and main.rs.
fn module_of(path: &Path) -> Option<String> {
    let mut parts = path.components().skip(1);
    let first = parts.next()?.as_os_str().to_str()?.to_string();
    match first.strip_suffix(".rs") {
        Some("lib" | "main") => None,
        Some(name) => Some(name.to_string()),
        None => Some(first),
    }
}

/// The text without `//` comments.
fn code(text: &str) -> String {
    let line = |l: &str| l.split("//").next().unwrap_or_default().to_string();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The modules that follow each `crate::`, also in `crate::{a::b, c}`.
fn used_modules(code: &str) -> Vec<String> {
    let mut used = Vec::new();
    for after in code.split("crate::").skip(1) {
        if !after.starts_with('{') {
            used.push(identifier(after));
            continue;
        }
        let (mut depth, mut expects_name) = (0, false);
        for (at, c) in after.char_indices() {
            match c {
                '{' => (depth, expects_name) = (depth + 1, depth == 0),
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' if depth == 1 => expects_name = true,
                c if expects_name && !c.is_whitespace() => {
                    used.push(identifier(&after[at..]));
                    expects_name = false;
                }
                _ => {}
            }
        }
    }
    used
}

fn identifier(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

#[test]
fn imports_go_down_only() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        let Some(module) = module_of(&path) else {
            continue;
        };
        let Some(own) = layer(&module) else {
            wrong.push(format!(
                "{}: module {module} has no layer in this test",
                path.display()
            ));
            continue;
        };
        for used in used_modules(&code(&text)) {
            match layer(&used) {
                Some(other) if other <= own => {}
                Some(other) => wrong.push(format!(
                    "{}: {module} (layer {own}) uses {used} (layer {other})",
                    path.display()
                )),
                None => wrong.push(format!("{}: uses unknown module {used:?}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_small() {
    for (path, text) in all_sources() {
        let most = if path.ends_with("tests.rs") {
            TEST_LINES_MAX
        } else {
            LINES_MAX
        };
        let lines = text.lines().count();
        let path = path.display();
        assert!(lines <= most, "{path}: {lines} lines; the most is {most}");
    }
}

#[test]
fn the_parser_sees_every_form_of_import() {
    let text = "use crate::base::Ino;\nuse crate::{format::{self, Row}, store, \n volume::Volume};\n\
                // crate::cli::comment\nlet x = crate::fs::Fs::new();";
    assert_eq!(
        used_modules(&code(text)),
        ["base", "format", "store", "volume", "fs"]
    );
}
