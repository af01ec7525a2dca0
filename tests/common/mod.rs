//! Running the examples as a person would.
#![expect(clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::{
    env,
    path::PathBuf,
    process::{Command, Output},
};

/// Where cargo puts an example: beside the folder of this test program.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test program knows where it is");
    let folder = test.ancestors().nth(2).expect("cargo puts test programs into target/…/deps");
    folder.join("examples").join(name)
}

/// What a program printed, after it has ended with success.
pub(crate) fn printed(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let Output { status, stdout, stderr } = output;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}
