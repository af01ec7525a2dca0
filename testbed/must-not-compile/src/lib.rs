//! Programs that must not compile, each with the error codes that it must fail with.
//!
//! A folder `compile_fail/` holds programs whose first line is `//~ E0505` (several codes with spaces between
//! them; the name of a lint is one), and `compile_pass/` a twin of each that compiles. The compiler's own messages are
//! not compared: they change from one to the next, and tests must pass on all of them. What a crate has the compiler
//! say, by `#[diagnostic::on_unimplemented]` or `#[must_use]`, is: each line `//~| WORDS` below the first is a part of
//! the messages.
#![expect(clippy::panic, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Checks the programs below `tests/` of the package in `package`, which may use that package and the
/// `dependencies` given as lines of a Cargo.toml with absolute paths.
///
/// # Panics
///
/// A program compiles that must not, fails with other codes than it names or without words that it names, has no twin that
/// compiles, or one that differs in more than one line.
pub fn check(package: &Path, dependencies: &[String]) {
    let tests = package.join("tests");
    let (fails, passes) =
        (programs(&tests.join("compile_fail")), programs(&tests.join("compile_pass")));
    assert_eq!(
        fails.keys().collect::<Vec<_>>(),
        passes.keys().collect::<Vec<_>>(),
        "each program that must not compile has a twin that does"
    );
    for (name, path) in &fails {
        differ_in_one_line(name, path, &passes[name]);
    }
    let found = compile(package, dependencies, &fails, &passes);
    let mut wrong = Vec::new();
    for (name, path) in &fails {
        let expected = Expected::of(path);
        let errors = found.get(&format!("fail-{name}")).cloned().unwrap_or_default();
        if errors.codes != expected.codes {
            let (codes, expected) = (errors.codes, expected.codes);
            wrong.push(format!("{name} fails with {codes:?}, should with {expected:?}"));
        }
        for words in expected.words.iter().filter(|words| !errors.text.contains(*words)) {
            wrong.push(format!("{name} fails without {words:?}:\n{}", errors.text));
        }
        if let Some(errors) = found.get(&format!("pass-{name}")) {
            wrong.push(format!("the twin of {name} does not compile:\n{}", errors.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The programs of a folder by their names.
fn programs(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a folder can be read").path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let name = path.file_stem().expect("a program has a name").to_string_lossy();
            (name.into_owned(), path.clone())
        })
        .collect()
}

/// A program cannot fail for another reason than the line in which its twin differs.
fn differ_in_one_line(name: &str, fails: &Path, passes: &Path) {
    let [fails, passes] =
        [fails, passes].map(|path| fs::read_to_string(path).expect("it is a text"));
    let fails: Vec<&str> = fails.lines().skip_while(|line| line.starts_with("//~")).collect();
    let passes: Vec<&str> = passes.lines().collect();
    let common = longest_common(&fails, &passes);
    assert!(fails.len() - common <= 1, "{name}: more than one line fails");
    assert!(passes.len() - common <= 1, "{name}: more than one line is other");
    assert_ne!(fails, passes, "{name}: its twin is the same");
}

/// How many lines two texts have in common, in one order.
fn longest_common(a: &[&str], b: &[&str]) -> usize {
    let mut before = vec![0; b.len() + 1];
    for line in a {
        let mut row = vec![0];
        for (at, other) in b.iter().enumerate() {
            row.push(if line == other { before[at] + 1 } else { before[at + 1].max(row[at]) });
        }
        before = row;
    }
    before[b.len()]
}

/// What a program must fail with.
struct Expected {
    codes: BTreeSet<String>,
    /// Parts of the messages.
    words: Vec<String>,
}

impl Expected {
    /// Reads a program's first lines.
    fn of(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a program can be read");
        let mut lines = text.lines();
        let codes = lines.next().and_then(|line| line.strip_prefix("//~ ")).unwrap_or_else(|| {
            panic!("{}: the first line names the error codes: //~ E0505", path.display())
        });
        let words = lines.map_while(|line| line.strip_prefix("//~| "));
        Self {
            codes: codes.split_whitespace().map(str::to_owned).collect(),
            words: words.map(str::to_owned).collect(),
        }
    }
}

/// What a program failed with.
#[derive(Debug, Clone, Default)]
struct Errors {
    codes: BTreeSet<String>,
    /// As the compiler prints them.
    text: String,
}

/// Checks all programs as binaries of one package; returns the errors of those that failed.
fn compile(
    package: &Path,
    dependencies: &[String],
    fails: &BTreeMap<String, PathBuf>,
    passes: &BTreeMap<String, PathBuf>,
) -> BTreeMap<String, Errors> {
    let name = package.file_name().expect("a package has a folder").to_string_lossy();
    let scratch = scratch_folder().join(format!("must-not-compile-{name}"));
    fs::create_dir_all(&scratch).expect("the scratch folder can be made");
    let mut manifest = String::from(
        "[package]\nname = \"programs\"\nversion = \"0.0.0\"\nedition = \"2024\"\nautobins = false\n\n\
         [workspace]\n\n[dependencies]\n",
    );
    for line in dependencies {
        manifest += &format!("{line}\n");
    }
    for (prefix, programs) in [("fail", fails), ("pass", passes)] {
        for (name, path) in programs {
            let path = path.display();
            manifest += &format!("\n[[bin]]\nname = \"{prefix}-{name}\"\npath = \"{path}\"\n");
        }
    }
    fs::write(scratch.join("Cargo.toml"), manifest).expect("the manifest can be written");
    // The versions that the workspace was built with, so that nothing is fetched.
    let lock =
        package.ancestors().map(|folder| folder.join("Cargo.lock")).find(|lock| lock.exists());
    fs::copy(lock.expect("the workspace has a Cargo.lock"), scratch.join("Cargo.lock"))
        .expect("the lock file can be copied");

    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(&scratch)
        .args([
            "check",
            "--offline",
            "--bins",
            "--keep-going",
            "--message-format=json",
            "--target-dir",
        ])
        .arg(scratch.join("target"))
        .stderr(Stdio::piped())
        .output()
        .expect("cargo can be run");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let messages: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    assert!(
        messages.iter().any(|message| message["reason"] == "compiler-message"),
        "cargo compiled nothing:\n{stderr}"
    );
    let mut found: BTreeMap<String, Errors> = BTreeMap::new();
    for message in &messages {
        let (target, body) = (&message["target"]["name"], &message["message"]);
        let is_error =
            body["level"] == "error" && !body["spans"].as_array().is_none_or(Vec::is_empty);
        if let (true, Some(target)) = (is_error, target.as_str()) {
            let code = body["code"]["code"].as_str().unwrap_or("none").to_owned();
            let errors = found.entry(target.to_owned()).or_default();
            errors.codes.insert(code);
            errors.text += body["rendered"].as_str().unwrap_or_default();
        }
    }
    found
}

/// A folder for this, below cargo's target folder.
fn scratch_folder() -> PathBuf {
    let test = env::current_exe().expect("a test program knows where it is");
    test.ancestors().nth(3).expect("cargo puts test programs into target/…/deps").join("tmp")
}
