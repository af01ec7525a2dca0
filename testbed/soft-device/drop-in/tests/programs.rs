//! Programs in C that know nothing of the soft device, with it in the place of libibverbs.
//!
//! Each needs a C compiler and the headers of rdma-core, those of the machine or those in `RDMA4RS_HEADERS` (which
//! `cargo testbed test` sets), and says so where they are missing.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says what it skips")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A folder with the drop-in library under the name that programs look for.
fn library_folder(test: &str) -> PathBuf {
    let here = env::current_exe().unwrap();
    let built = here
        .ancestors()
        .map(|folder| folder.join("libibverbs.so"))
        .find(|file| file.is_file())
        .unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&folder).unwrap();
    fs::copy(built, folder.join("libibverbs.so.1")).unwrap();
    folder
}

/// The C compiler, with the headers that the testbed fetched, if it says where they are.
fn compiler() -> Command {
    let mut compiler = Command::new("cc");
    for folder in env::var_os("RDMA4RS_HEADERS").iter().flat_map(env::split_paths) {
        compiler.arg("-I").arg(folder);
    }
    compiler
}

/// Compiles a program; `None`, with the reason printed, where that cannot be done.
fn compile(source: &Path, folder: &Path) -> Option<PathBuf> {
    let program = folder.join("program");
    let headers = folder.join("headers.c");
    fs::write(&headers, "#include <infiniband/verbs.h>\n").unwrap();
    let preprocessed = compiler().arg("-E").arg(&headers).output();
    match preprocessed {
        Err(error) => {
            println!("skipped: there is no C compiler: {error}");
            return None;
        }
        Ok(output) if !output.status.success() => {
            println!("skipped: infiniband/verbs.h is missing (apt install libibverbs-dev)");
            return None;
        }
        Ok(_) => {}
    }
    let library = folder.join("libibverbs.so.1");
    let compiled = compiler().arg("-O1").arg("-o").arg(&program).arg(source).arg(library).output();
    assert_success(&compiled.unwrap());
    Some(program)
}

fn run(program: &Path, arguments: &[&str], folder: &Path) -> String {
    let output =
        Command::new(program).args(arguments).env("LD_LIBRARY_PATH", folder).output().unwrap();
    assert_success(&output);
    String::from_utf8(output.stdout).unwrap()
}

fn assert_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
}

#[test]
fn a_c_program_finds_the_device_and_its_bytes_arrive() {
    let folder = library_folder("loopback");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loopback.c");
    let Some(program) = compile(&source, &folder) else { return };
    assert_eq!(run(&program, &[], &folder), "loopback ok\n");
}

#[test]
fn a_c_program_finds_an_efa_device_if_it_asks_for_one() {
    let folder = library_folder("efa");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let Some(program) = compile(&root.join("benches/c/efa_data_path_cost.c"), &folder) else {
        return;
    };
    for operation in ["write", "receive"] {
        let mut command = Command::new(&program);
        command.args(["--op", operation, "--rounds", "10"]);
        command.env("LD_LIBRARY_PATH", &folder).env("SOFT_DEVICE_KIND", "efa");
        assert_success(&command.output().unwrap());
    }
}

#[test]
fn the_benchmark_programs_of_other_bindings_run_unchanged() {
    let Some(programs) = env::var_os("RDMA_PEER_PROGRAMS") else {
        println!(
            "skipped: RDMA_PEER_PROGRAMS names no folder with bench-c, bench-sideway or bench-ibverbs-092"
        );
        return;
    };
    let folder = library_folder("peers");
    let mut found = 0;
    for (name, modes) in [
        ("bench-c", [&[][..], &["--inline"], &["--basic"], &["--op", "write-imm"]].as_slice()),
        ("bench-sideway", &[&[], &["--inline"], &["--basic"], &["--op", "write-imm"]]),
        ("bench-ibverbs-092", &[&[]]),
    ] {
        let program = Path::new(&programs).join(name);
        if !program.is_file() {
            println!("skipped: there is no {}", program.display());
            continue;
        }
        found += 1;
        for options in modes {
            for mode in ["single", "batch"] {
                let counts = ["--mode", mode, "--iters", "1000", "--warmup", "10"];
                let arguments = [&counts, *options].concat();
                let said = run(&program, &arguments, &folder);
                assert!(said.contains("dev=soft0"), "{said}");
            }
        }
    }
    assert!(found > 0, "no program in {}", programs.display());
}
