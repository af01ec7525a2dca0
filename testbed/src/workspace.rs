//! The cargo workspace that the testbed works on: its packages, and what cargo builds of them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{During, Error, Result};
use crate::process;

/// The root package, which owns the examples.
const ROOT_PACKAGE: &str = "rdma4rs";

/// A workspace of cargo.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its root folder.
    pub(crate) root: PathBuf,
    /// Where cargo builds to.
    pub(crate) target: PathBuf,
    /// Its default members.
    pub(crate) packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name for cargo.
    pub(crate) name: String,
    /// Whether it has a library with documentation tests.
    pub(crate) has_doctests: bool,
    /// Whether its library is for other languages. Cargo does not build such a library for its tests.
    has_foreign_library: bool,
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The variables that cargo sets for its programs and tests.
    pub(crate) environment: Vec<(String, String)>,
    id: String,
}

impl Package {
    /// The name that selects it: without the common prefix; `examples` for the root package.
    pub(crate) fn short_name(&self) -> &str {
        if self.name == ROOT_PACKAGE {
            return "examples";
        }
        self.name.strip_prefix("rdma4rs-").unwrap_or(&self.name)
    }
}

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Index of its package in [`Workspace::packages`].
    pub(crate) package: usize,
    /// The name of the target: of the library, the program, or the file in `tests/`.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, `example`, …
    pub(crate) kind: String,
    /// Whether it was built as a test.
    pub(crate) is_test: bool,
    /// The file.
    pub(crate) file: PathBuf,
}

impl Workspace {
    /// The workspace that this program belongs to.
    pub(crate) fn find() -> Result<Self> {
        let mut command = cargo();
        command.args(["locate-project", "--workspace", "--message-format=plain"]);
        if let Some(folder) = std::env::var_os("CARGO_MANIFEST_DIR") {
            command.arg("--manifest-path").arg(PathBuf::from(folder).join("Cargo.toml"));
        }
        let manifest = String::from_utf8_lossy(&process::output_of(&mut command)?).into_owned();

        // Asked by a member's manifest, cargo would name that member alone as the default one.
        let mut command = cargo();
        command.args(["metadata", "--format-version=1", "--no-deps", "--manifest-path"]);
        command.arg(manifest.trim());
        let output = process::output_of(&mut command)?;
        let metadata = serde_json::from_slice(&output).map_err(|error| bad(error.to_string()))?;
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Value) -> Result<Self> {
        let path = |name: &str| -> Result<PathBuf> {
            text(metadata, name).map(PathBuf::from).ok_or_else(|| bad(format!("no {name}")))
        };
        let list = |name: &str| metadata.get(name).and_then(Value::as_array);
        let members = list("workspace_default_members").or_else(|| list("workspace_members"));
        let packages = list("packages").ok_or_else(|| bad("no packages".into()))?;
        let packages = packages
            .iter()
            .filter(|package| {
                members.is_none_or(|ids| package.get("id").is_some_and(|id| ids.contains(id)))
            })
            .map(|package| package_of(package).ok_or_else(|| bad(format!("package {package}"))))
            .collect::<Result<_>>()?;
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")?, packages })
    }

    /// The folders that the guest must see.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        vec![self.root.clone(), self.target.clone()]
    }

    /// Builds the test programs of some packages; the order is the same every time.
    pub(crate) fn build_tests(&self, packages: &[&Package]) -> Result<Vec<Program>> {
        for package in packages.iter().filter(|package| package.has_foreign_library) {
            self.build(&["build", "--lib", "--package", &package.name])?;
        }
        let mut words = vec!["test", "--no-run"];
        words.extend(packages.iter().flat_map(|package| ["--package", &package.name]));
        let mut programs = self.build(&words)?;
        programs.retain(|program| program.is_test);
        programs
            .sort_by(|one, other| (one.package, &one.target).cmp(&(other.package, &other.target)));
        Ok(programs)
    }

    /// Builds one example, or all, of the root package; their folder is [`Self::examples_folder`].
    pub(crate) fn build_examples(&self, name: Option<&str>) -> Result<Vec<Program>> {
        let mut words = vec!["build", "--package", ROOT_PACKAGE];
        match name {
            Some(name) => words.extend(["--example", name]),
            None => words.push("--examples"),
        }
        let programs = self.build(&words)?;
        Ok(programs.into_iter().filter(|program| program.kind == "example").collect())
    }

    /// Builds some examples with optimization; their folder is `release/examples`.
    pub(crate) fn build_release_examples(&self, names: &[&str]) -> Result<()> {
        let mut words = vec!["build", "--release", "--package", ROOT_PACKAGE];
        words.extend(names.iter().flat_map(|name| ["--example", name]));
        self.build(&words).map(drop)
    }

    /// Builds a package's library or programs with optimization.
    pub(crate) fn build_release(&self, package: &str) -> Result<()> {
        self.build(&["build", "--release", "--package", package]).map(drop)
    }

    /// Builds the one program of a package with optimization.
    pub(crate) fn build_release_program(&self, package: &str) -> Result<PathBuf> {
        self.build_one(&["build", "--release", "--package", package, "--bins"])
    }

    /// Builds the one program of a package.
    pub(crate) fn build_program(&self, package: &str) -> Result<PathBuf> {
        self.build_one(&["build", "--package", package, "--bins"])
    }

    fn build_one(&self, words: &[&str]) -> Result<PathBuf> {
        let programs = self.build(words)?;
        let program = programs.into_iter().find(|program| program.kind == "bin");
        let none = || bad(format!("no program of `cargo {}`", words.join(" ")));
        program.map(|program| program.file).ok_or_else(none)
    }

    /// Where cargo puts examples.
    pub(crate) fn examples_folder(&self) -> PathBuf {
        self.target.join("debug/examples")
    }

    /// Runs a command of cargo that builds, with its progress and its warnings for the user.
    fn build(&self, words: &[&str]) -> Result<Vec<Program>> {
        let mut child = cargo()
            .args(words)
            .arg("--message-format=json-render-diagnostics")
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .during(|| "start cargo".into())?;
        let mut programs = Vec::new();
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines() {
                let line = line.during(|| "read what cargo built".into())?;
                programs.extend(self.program_of(&line));
            }
        }
        let status = child.wait().during(|| "wait for cargo".into())?;
        if status.success() {
            return Ok(programs);
        }
        let command = format!("cargo {}", words.join(" "));
        Err(Error::Command { command, status, tail: "see its messages above".into() })
    }

    /// The program that one of cargo's messages announces.
    fn program_of(&self, message: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(message).ok()?;
        if text(&message, "reason")? != "compiler-artifact" {
            return None;
        }
        let file = PathBuf::from(text(&message, "executable")?);
        let id = text(&message, "package_id")?;
        let package = self.packages.iter().position(|package| package.id == id)?;
        let target = message.get("target")?;
        let kind = target.get("kind")?.get(0)?.as_str()?.to_owned();
        let is_test = message.get("profile")?.get("test")?.as_bool()?;
        Some(Program { package, target: text(target, "name")?.to_owned(), kind, is_test, file })
    }
}

/// The cargo that started this program, or the one in `PATH`.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn package_of(value: &Value) -> Option<Package> {
    let name = text(value, "name")?.to_owned();
    let manifest = Path::new(text(value, "manifest_path")?);
    let folder = manifest.parent()?.to_owned();
    let version = text(value, "version")?;
    let targets = value.get("targets")?.as_array()?;
    let has_type = |target: &Value, wanted: &str| {
        let types = target.get("crate_types").and_then(Value::as_array);
        types.is_some_and(|types| types.iter().any(|one| one == wanted))
    };
    let has_doctests = targets.iter().any(|target| {
        // Documentation tests are only built for libraries that other Rust code can use.
        has_type(target, "lib") && target.get("doctest").and_then(Value::as_bool).unwrap_or(false)
    });
    let has_foreign_library = targets.iter().any(|target| has_type(target, "cdylib"));
    let mut numbers = version.split(['.', '-']);
    let mut number = || numbers.next().unwrap_or_default().to_owned();
    let environment = [
        ("CARGO_MANIFEST_DIR", folder.display().to_string()),
        ("CARGO_MANIFEST_PATH", manifest.display().to_string()),
        ("CARGO_PKG_NAME", name.clone()),
        ("CARGO_PKG_VERSION", version.to_owned()),
        ("CARGO_PKG_VERSION_MAJOR", number()),
        ("CARGO_PKG_VERSION_MINOR", number()),
        ("CARGO_PKG_VERSION_PATCH", number()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let id = text(value, "id")?.to_owned();
    Some(Package { name, has_doctests, has_foreign_library, folder, environment, id })
}

fn text<'value>(value: &'value Value, name: &str) -> Option<&'value str> {
    value.get(name).and_then(Value::as_str)
}

fn bad(found: String) -> Error {
    Error::Format { what: "cargo's metadata".into(), found }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace() -> Workspace {
        let package = |name: &str, folder: &str, types: &[&str]| {
            json!({
                "name": name, "id": format!("path+file:///w/{folder}#0.1.0"), "version": "0.1.0",
                "manifest_path": format!("/w/{folder}/Cargo.toml"),
                "targets": [{"crate_types": types, "doctest": true}],
            })
        };
        let metadata = json!({
            "workspace_root": "/w", "target_directory": "/w/target",
            "workspace_default_members": ["path+file:///w/sys#0.1.0", "path+file:///w/.#0.1.0"],
            "packages": [
                package("rdma4rs-sys", "sys", &["lib"]),
                package("rdma4rs", ".", &["bin"]),
                package("generate", "generate", &["bin"]),
            ],
        });
        Workspace::from_metadata(&metadata).unwrap()
    }

    #[test]
    fn default_members_are_known_by_short_names() {
        let workspace = workspace();
        let names: Vec<_> = workspace.packages.iter().map(Package::short_name).collect();
        assert_eq!(names, ["sys", "examples"]);
        assert!(workspace.packages[0].has_doctests);
        assert!(!workspace.packages[1].has_doctests);
        assert_eq!(workspace.packages[0].folder, Path::new("/w/sys"));
    }

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let message = |package: &str, executable: Value| {
            json!({
                "reason": "compiler-artifact", "package_id": package, "executable": executable,
                "target": {"name": "kernel_rc", "kind": ["test"]}, "profile": {"test": true},
            })
            .to_string()
        };
        let workspace = workspace();
        let ours = message("path+file:///w/sys#0.1.0", json!("/w/target/debug/deps/kernel_rc-1"));
        let program = workspace.program_of(&ours).unwrap();
        assert_eq!((program.package, program.target.as_str()), (0, "kernel_rc"));
        assert!(program.is_test);
        assert_eq!(workspace.program_of(&message("path+file:///w/sys#0.1.0", json!(null))), None);
        assert_eq!(workspace.program_of(&message("registry+x#1", json!("/x"))), None);
        assert_eq!(workspace.program_of("not JSON"), None);
    }
}
