//! What must not compile does not, for the reason that is written down beside it.
//!
//! Each program in `compile_fail/` has a twin of the same name in `compile_pass/` that differs in one
//! line and compiles, so that a program cannot fail for another reason than that line.
//! `TRYBUILD=overwrite cargo test -p rdma4rs-ibverbs --test compile_fail` writes the messages anew.

use std::{collections::BTreeSet, ffi::OsString, fs, path::Path};

fn programs(folder: &str) -> BTreeSet<OsString> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_name().unwrap().to_owned())
        .collect()
}

#[test]
fn what_must_not_compile_does_not_and_its_twin_does() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
    cases.pass("tests/compile_pass/*.rs");
}

#[test]
fn twins_differ_in_one_line() {
    let names = programs("compile_fail");
    assert_eq!(names, programs("compile_pass"));
    assert!(!names.is_empty());
    for name in names {
        let read = |folder: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
            fs::read_to_string(folder.join(&name)).unwrap()
        };
        let (fails, passes) = (read("compile_fail"), read("compile_pass"));
        let (fails, passes): (Vec<&str>, Vec<&str>) =
            (fails.lines().collect(), passes.lines().collect());
        let common = longest_common(&fails, &passes);
        assert!(fails.len() - common <= 1, "{name:?}: more than one line fails");
        assert!(passes.len() - common <= 1, "{name:?}: more than one line is other");
        assert_ne!(fails, passes, "{name:?}");
    }
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
