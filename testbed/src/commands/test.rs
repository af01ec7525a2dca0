//! `cargo testbed test`: every test there is, and one line that counts them.
//!
//! A test program whose name begins with `kernel_` needs a kernel with RDMA and runs in the guest; all
//! others, and the documentation tests, run natively. Nothing counts as passed by not running: tests
//! that skip themselves are counted apart, and a program that crashes, hangs, or ends without its
//! result line is a failure.

mod board;
mod in_guest;
mod native;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::board::Board;
use crate::cache::Cache;
use crate::error::{Result, chain};
use crate::headers::include_folders;
use crate::workspace::{Package, Program, Workspace};

/// The beginning of the names of test programs that run in the guest.
const KERNEL_PREFIX: &str = "kernel_";

/// Packages whose tests compile C programs.
const WITH_HEADERS: [&str; 2] = ["sys", "soft-device-drop-in"];

/// Options of `test`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Packages by their short names (`ibverbs`, `efa`, `nvmeof`, `cuda-interop`, `sys`, `soft-device`,
    /// `testbed`, `examples`, …), all if none is named; other words select tests by name.
    filters: Vec<String>,

    /// Show everything that test programs write, as they write it.
    #[arg(long, short)]
    verbose: bool,

    /// Seconds that one test program may take.
    #[arg(long, default_value_t = 900)]
    timeout: u64,

    /// Memory of the guest in MiB.
    #[arg(long)]
    memory: Option<u32>,
}

/// What is to be run, and how.
#[derive(Debug)]
struct Plan<'workspace> {
    workspace: &'workspace Workspace,
    packages: Vec<&'workspace Package>,
    /// Tests must have one of these in their names, if there are any.
    names: Vec<String>,
    /// Variables for every test.
    environment: Vec<(String, String)>,
    timeout: Duration,
    memory: Option<u32>,
}

/// Runs the tests. The last line says how many passed, failed and were skipped, whatever happens.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut board = Board::new(options.verbose);
    if let Err(error) = run_all(options, &mut board) {
        board.trouble("cargo testbed test", &chain(&error));
    }
    board.close()
}

fn run_all(options: &Options, board: &mut Board) -> Result<()> {
    let workspace = Workspace::find()?;
    let (packages, names) = select(&workspace, &options.filters);
    let mut plan = Plan {
        workspace: &workspace,
        packages,
        names,
        environment: Vec::new(),
        timeout: Duration::from_secs(options.timeout),
        memory: options.memory,
    };
    let cache = Cache::open()?;
    if plan.packages.iter().any(|package| WITH_HEADERS.contains(&package.short_name())) {
        let folders = include_folders(&cache)?;
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        plan.environment.push(("RDMA4RS_HEADERS".into(), folders.join(":")));
    }

    let programs = workspace.build_tests(&plan.packages)?;
    let (in_guest, native): (Vec<Program>, Vec<Program>) =
        programs.into_iter().partition(|program| program.target.starts_with(KERNEL_PREFIX));
    let in_guest = native::with_matching_tests(&plan, in_guest)?;
    let uses_examples = |package: &&Package| package.short_name() == "examples";
    if !in_guest.is_empty() || plan.packages.iter().any(uses_examples) {
        workspace.build_examples(None)?;
        let folder = workspace.examples_folder().display().to_string();
        plan.environment.push(("RDMA4RS_EXAMPLES".into(), folder));
    }

    for program in &native {
        native::run_program(&plan, program, board)?;
    }
    for package in plan.packages.iter().filter(|package| package.has_doctests) {
        native::run_doctests(&plan, package, board)?;
    }
    in_guest::run_programs(&plan, &in_guest, &cache, board);
    if !plan.names.is_empty() && board.is_empty() {
        board.trouble("cargo testbed test", &format!("no test matches {}", plan.names.join(", ")));
    }
    Ok(())
}

/// Splits the words into packages and parts of test names. No package named means all.
fn select<'w>(workspace: &'w Workspace, words: &[String]) -> (Vec<&'w Package>, Vec<String>) {
    let is = |package: &Package, word: &str| package.short_name() == word || package.name == word;
    let (packages, names): (Vec<String>, Vec<String>) =
        words.iter().cloned().partition(|word| workspace.packages.iter().any(|p| is(p, word)));
    let chosen = workspace
        .packages
        .iter()
        .filter(|package| packages.is_empty() || packages.iter().any(|word| is(package, word)))
        .collect();
    (chosen, names)
}

/// How a test program is called in what is shown: its package, and which of its programs.
fn title(workspace: &Workspace, program: &Program) -> String {
    let package = workspace.packages.get(program.package).map_or("?", Package::short_name);
    match program.kind.as_str() {
        "test" => format!("{package}: {}", program.target),
        "bin" | "lib" | "rlib" | "cdylib" => format!("{package}: unit tests"),
        kind => format!("{package}: {kind} {}", program.target),
    }
}
