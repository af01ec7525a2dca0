//! Printing: tables for people, JSON for programs.
#![expect(clippy::print_stderr, reason = "a command-line program prints")]

use std::{
    error::Error,
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

/// Prints an error with its causes.
pub(crate) fn failure(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    eprintln!("rdma4rs: {text}");
    ExitCode::FAILURE
}

/// Whether something that was printed did not arrive.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// The exit code of a program that would end with `code`, had everything been printed.
pub(crate) fn conclude(code: ExitCode) -> ExitCode {
    if IS_LOST.load(Ordering::Relaxed) { ExitCode::FAILURE } else { code }
}

/// Prints one line.
pub(crate) fn line(text: &str) {
    if let Err(error) = io::stdout().lock().write_all(format!("{text}\n").as_bytes()) {
        // Whoever reads only the beginning, as `head` does, has what he wants.
        let is_news =
            error.kind() != ErrorKind::BrokenPipe && !IS_LOST.swap(true, Ordering::Relaxed);
        if is_news {
            note(&format!("rdma4rs: standard output: {error}"));
        }
    }
}

/// Prints one line that is no result, to standard error.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Prints JSON, indented.
pub(crate) fn json(value: &Value) {
    line(&format!("{value:#}"));
}

/// Prints rows in columns as wide as their widest cell; the first row is the head.
pub(crate) fn table(rows: &[Vec<String>]) {
    for row in aligned(rows) {
        line(&row);
    }
}

fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), "µs".to_owned()]];
        assert_eq!(aligned(&rows), ["a     b", "long  µs"]);
        assert!(aligned(&[]).is_empty());
    }
}
