//! The commands that the guide tells to type: there are such programs, and those of the first chapter work as they stand.
#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs/src").join(name)).unwrap()
}

/// The lines of a page's blocks of text that begin with `cargo`, without what explains them behind them.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = line == "```text" || line == "```console";
        } else if in_block && line.trim_start_matches("$ ").starts_with("cargo ") {
            let command = line.trim_start_matches("$ ");
            found.push(command.split("    ").next().unwrap().trim().to_owned());
        }
    }
    found
}

/// The names in the manifests of the workspace's packages.
fn packages() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split(']').next().unwrap();
    let folders = members.split('"').skip(1).step_by(2).chain(["."]);
    let name = |folder: &str| {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let (_, package) = manifest.split_once("[package]").unwrap();
        let line = package.lines().find(|line| line.starts_with("name = ")).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    folders.map(name).collect()
}

/// What is wrong with a command: names of packages, examples, benchmarks or tasks that there are not.
fn complaint(command: &str, packages: &[String]) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().take_while(|word| *word != "--").collect();
    if words.get(1) == Some(&"testbed") {
        let task = words.get(2)?;
        let readme = fs::read_to_string(root().join("testbed/README.md")).unwrap();
        let known = readme.contains(&format!("cargo testbed {task}"));
        return (!known).then(|| format!("no task {task}"));
    }
    words.windows(2).find_map(|pair| {
        let name = pair[1];
        let file = |folder: &str| root().join(folder).join(name).with_extension("rs").exists();
        let known = match pair[0] {
            "-p" | "--package" => packages.iter().any(|package| package == name),
            "--example" => file("examples"),
            "--bench" => file("benches"),
            _ => true,
        };
        (!known).then(|| format!("no {name}"))
    })
}

#[test]
fn every_command_names_what_there_is() {
    let packages = packages();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for entry in fs::read_dir(root().join("docs/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "md") {
            continue;
        }
        for command in commands(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            if let Some(complaint) = complaint(&command, &packages) {
                wrong.push(format!("{}: `{command}`: {complaint}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 10, "only {count} commands were found");
}

#[test]
fn the_commands_of_the_first_chapter_work_as_they_stand() {
    let found = commands(&page("introduction.md"));
    assert_eq!(found, ["cargo run --example write_with_imm"]);
    for command in found {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(root());
        // What cargo tells this test is not for another package, and a newcomer has no launcher.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "RANK", "WORLD_SIZE", "RDMA"]
                .iter()
                .any(|start| text.starts_with(start))
            {
                shell.env_remove(&name);
            }
        }
        let output = shell.output().unwrap();
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {text}\n{errors}");
        assert!(text.contains("verified all 1048576 bytes"), "{command}: {text}");
    }
}

#[test]
fn commands_are_told_from_what_explains_them() {
    let text =
        "```text\ncargo testbed demo    the example\n$ cargo run -p x -- y\nother\n```\ncargo no\n";
    assert_eq!(commands(text), ["cargo testbed demo", "cargo run -p x -- y"]);
    let known = ["x".to_owned()];
    assert_eq!(complaint("cargo run -p x -- -p z", &known), None);
    assert_eq!(complaint("cargo run -p y", &known), Some("no y".into()));
    assert_eq!(complaint("cargo run --example none", &known), Some("no none".into()));
    assert_eq!(complaint("cargo testbed fly", &known), Some("no task fly".into()));
}
