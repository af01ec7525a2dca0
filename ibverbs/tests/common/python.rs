//! The other side of a test as a Python process that talks over standard input and output, a line a step.
//!
//! Its package lies in `target/python`, fetched for the guest's Python.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Where a package is, if it was fetched; says so if it was not.
pub(crate) fn package(name: &str) -> Option<PathBuf> {
    let test = env::current_exe().unwrap();
    // target/debug/deps/kernel_efa_python-….
    let target = test.ancestors().nth(3).map(|target| target.join("python"));
    let found = target.filter(|folder| folder.join(name).is_dir());
    if found.is_none() {
        println!("skipped: no Python package `{name}` in target/python");
    }
    found
}

/// The process of the other side; ended with the test.
pub(crate) struct Python {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Python {
    /// Starts `tests/python/peer.py` of the package that is tested.
    pub(crate) fn start(package: &Path, device: &str) -> Self {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = crate_folder.join("tests/python/peer.py");
        // Where `talk.py` is.
        let common = crate_folder.join("../ibverbs/tests/common");
        let paths = env::join_paths([package, &common]).unwrap();
        let mut process = Command::new("python3")
            .arg(script)
            .arg(device)
            .env("PYTHONPATH", paths)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// What it says next; it says why on standard error if it ends instead.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "Python ended");
        line.trim().to_owned()
    }

    pub(crate) fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn finish(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
