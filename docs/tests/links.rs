//! Every link of every document leads somewhere, and every page of the guide is in its table of contents.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops where it cannot go on")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The lines of a page that are prose: blocks of code hold no links.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A line without its code spans, whose brackets are no links.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of the links and pictures of a page.
fn targets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text).map(without_code) {
        for part in line.split("](").skip(1) {
            let end = part.find(')').unwrap_or_else(|| panic!("a link does not end: {line}"));
            found.push(part[..end].to_owned());
        }
    }
    found
}

/// The anchors of a page's headings, made as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// All documents of the repository, those of the guide among them.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders =
        vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut dead = Vec::new();
    let mut count = 0;
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            // Names of Rust are checked by rustdoc.
            if target.contains("://") || target.contains("::") {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path =
                if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let is_right = match fs::read_to_string(&path) {
                Ok(there) => anchor.is_empty() || anchors(&there).contains(anchor),
                Err(_) => anchor.is_empty() && path.is_dir(),
            };
            if !is_right {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    assert!(count > 55, "only {count} links were found");
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let summary = fs::read_to_string(folder().join("SUMMARY.md")).unwrap();
    let mut listed = targets(&summary);
    listed.sort();
    let mut there: Vec<String> =
        pages().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    there.retain(|name| name != "SUMMARY.md");
    there.sort();
    assert_eq!(listed, there);
}

#[test]
fn the_blocks_of_every_page_are_compiled() {
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        let has_blocks = fs::read_to_string(&page).unwrap().contains("```rust");
        assert!(!has_blocks || guide::PAGES.contains(&name), "{name} is not in code/lib.rs");
    }
}

#[test]
fn pictures_are_named_by_a_page_and_say_what_they_show() {
    let texts: String = pages().iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    for entry in fs::read_dir(folder().join("images")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(texts.contains(&format!("](images/{name})")), "{name} is shown nowhere");
        let picture = fs::read_to_string(&path).unwrap();
        assert!(picture.contains("<title>"), "{name} has no title");
        assert!(picture.trim_end().ends_with("</svg>"), "{name} does not end");
    }
}

#[test]
fn the_table_of_costs_is_the_one_of_the_readme() {
    let table = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| !line.starts_with("| | C, `ibv_wr_*`"));
        lines.take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
    };
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = table(&fs::read_to_string(readme).unwrap());
    assert!(readme.len() > 3, "README.md has no such table");
    assert_eq!(table(&fs::read_to_string(folder().join("benchmarks.md")).unwrap()), readme);
}

#[test]
fn anchors_are_made_of_headings() {
    let text = "# Use `x`, it's nice\n```\n# no heading\n```\n## A b";
    assert_eq!(anchors(text), ["use-x-its-nice", "a-b"].map(str::to_owned).into());
    assert_eq!(targets("see [`a`](b.md#c) and ![d](e.svg)\n`[f](g)`"), ["b.md#c", "e.svg"]);
}
