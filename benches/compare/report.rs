//! What a run found: a table, JSON and a plot.

use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What is wanted of a row.
#[derive(Clone, Copy)]
pub enum Goal {
    /// stowfs / peer.
    RatioAtLeast(f64),
    RatioAtMost(f64),
    /// The figure of stowfs alone.
    AtMost(f64),
}

impl Goal {
    fn text(self) -> String {
        match self {
            Goal::RatioAtLeast(x) => format!("ratio ≥ {}", short(x)),
            Goal::RatioAtMost(x) => format!("ratio ≤ {}", short(x)),
            Goal::AtMost(x) => format!("≤ {}", short(x)),
        }
    }

    /// How many times better than wanted: 1 and more is met.
    fn margin(self, row: &Row) -> Option<f64> {
        match self {
            Goal::RatioAtLeast(x) => row.ratio().map(|r| r / x),
            Goal::RatioAtMost(x) => row.ratio().map(|r| x / r.max(1e-9)),
            // None of something is wanted and met.
            Goal::AtMost(x) if row.stowfs <= x => Some((x / row.stowfs.max(1e-9)).max(1.0)),
            Goal::AtMost(x) => Some(x / row.stowfs),
        }
    }
}

pub struct Row {
    pub part: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub stowfs: f64,
    pub peer: Option<(&'static str, f64)>,
    pub goal: Option<Goal>,
    /// Of the machine, when the figure was taken.
    pub load: f64,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.peer
            .filter(|(_, p)| *p > 0.0)
            .map(|(_, p)| self.stowfs / p)
    }

    fn margin(&self) -> Option<f64> {
        self.goal.and_then(|g| g.margin(self))
    }

    fn met(&self) -> &'static str {
        match self.margin() {
            Some(m) if m >= 1.0 => "yes",
            Some(_) => "no",
            None => "",
        }
    }

    fn cells(&self) -> [String; 7] {
        let peer = self.peer.map(|(name, p)| format!("{} ({name})", short(p)));
        [
            format!("{} ({})", self.what, self.unit),
            short(self.stowfs),
            peer.unwrap_or_default(),
            self.ratio().map(short).unwrap_or_default(),
            self.goal.map(Goal::text).unwrap_or_default(),
            self.met().into(),
            format!("{:.1}", self.load),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "part": self.part, "what": self.what, "unit": self.unit, "stowfs": self.stowfs,
            "peer": self.peer.map(|(name, value)| json!({ "name": name, "value": value })),
            "ratio": self.ratio(), "goal": self.goal.map(Goal::text), "margin": self.margin(),
            "met": self.goal.map(|_| self.met() == "yes"), "load": self.load,
        })
    }
}

/// Three digits that count.
pub fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.1 => format!("{x:.2}"),
        a if a >= 0.001 => format!("{x:.4}"),
        _ => format!("{x:.1e}"),
    }
}

/// The load average of the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0.0)
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Report {
    /// A figure beside a peer's.
    pub fn row(
        &mut self,
        (part, what): (&'static str, &str),
        unit: &'static str,
        stowfs: f64,
        peer: Option<(&'static str, f64)>,
        goal: Option<Goal>,
    ) {
        let row = Row {
            part,
            what: what.into(),
            unit,
            stowfs,
            peer,
            goal,
            load: load(),
        };
        println!("  {}", row.cells().join(" | "));
        self.rows.push(row);
    }

    /// What explains figures.
    pub fn note(&mut self, text: String) {
        println!("  {text}");
        self.notes.push(text);
    }

    pub fn table(&self) -> String {
        const HEAD: [&str; 7] = ["what", "stowfs", "peer", "ratio", "goal", "met", "load"];
        let mut lines: Vec<[String; 7]> = vec![HEAD.map(String::from)];
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |i: usize| {
            lines
                .iter()
                .map(|l| l[i].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        lines.insert(1, std::array::from_fn(|i| "-".repeat(widths[i])));
        let mut text = String::new();
        for line in &lines {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(text, "| {cell:width$} ");
            }
            text += "|\n";
        }
        text
    }

    /// Into `compare.json` and `compare.svg`.
    pub fn write(&self, dir: &Path) -> std::io::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir)?;
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
        let all = json!({ "processors": cpus, "rows": rows, "notes": self.notes });
        let files = [
            ("compare.json", serde_json::to_string_pretty(&all)?),
            ("compare.svg", self.svg()),
        ];
        let write = |(name, text): (&str, String)| {
            let path = dir.join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        files.into_iter().map(write).collect()
    }

    /// One bar for each goal, on a logarithmic scale: right of the middle it is met.
    fn svg(&self) -> String {
        const LEFT: f64 = 470.0;
        const MIDDLE: f64 = 720.0;
        const DECADE: f64 = 110.0;
        let with_goal: Vec<(&Row, f64)> = self
            .rows
            .iter()
            .filter_map(|r| r.margin().map(|m| (r, m)))
            .collect();
        let height = 50.0 + 22.0 * with_goal.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"20\">stowfs against its goals: right of the line it is met \
             (logarithmic; each mark is a factor of 10)</text>\n"
        );
        for mark in -2..=2 {
            let x = MIDDLE + DECADE * f64::from(mark);
            let colour = if mark == 0 { "black" } else { "#dddddd" };
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"30\" x2=\"{x}\" y2=\"{height}\" stroke=\"{colour}\"/>"
            );
        }
        for (i, (row, margin)) in with_goal.iter().enumerate() {
            let y = 34.0 + 22.0 * i as f64;
            let length = (margin.log10() * DECADE).clamp(LEFT - MIDDLE, 1000.0 - MIDDLE);
            let (x, colour) = match length >= 0.0 {
                true => (MIDDLE, "#3a8f4d"),
                false => (MIDDLE + length, "#c0392b"),
            };
            let what = escape(&format!("{}: {}", row.part, row.what));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{what}</text>\
                 <rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"16\" fill=\"{colour}\"/>",
                LEFT - 8.0,
                y + 12.0,
                length.abs().max(1.0)
            );
        }
        svg + "</svg>\n"
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
