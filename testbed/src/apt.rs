//! The host's apt: which Debian mirror to use, and what to install on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::process::{self, is_installed, read_lossy};
use crate::progress::Step;

/// The environment variable that names the Debian mirror to use.
pub(crate) const MIRROR_VARIABLE: &str = "RDMA4RS_DEBIAN_MIRROR";

/// Debian's own keys, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A place to get Debian packages from, with the keys to check them by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Debian {
    mirror: String,
}

impl Debian {
    /// Finds the mirror, and installs Debian's keys if they are missing.
    ///
    /// The mirror is the one in `RDMA4RS_DEBIAN_MIRROR`; else, on Debian, that of the machine's own
    /// apt sources; else the default that the mmdebstrap package ships.
    ///
    /// # Errors
    /// [`Error::Host`] on a system without apt, or when no mirror can be found.
    pub(crate) fn of_this_machine(cache: &Cache) -> Result<Self> {
        let system = System::of_this_machine()?;
        if !Path::new(KEYRING).exists() {
            install("debian-archive-keyring", cache)?;
        }
        let named = std::env::var(MIRROR_VARIABLE).ok().filter(|mirror| !mirror.is_empty());
        let own = || if system == System::Debian { own_mirror() } else { None };
        if let Some(mirror) = named.or_else(own) {
            return Ok(Self { mirror });
        }
        require_mmdebstrap(cache)?;
        let mirror = default_mirror().ok_or_else(|| {
            Error::Host(format!(
                "no Debian mirror found in the apt sources; name one in {MIRROR_VARIABLE}"
            ))
        })?;
        Ok(Self { mirror })
    }

    /// The line of a `sources.list` for one suite; its signature is checked by Debian's keys alone.
    pub(crate) fn source_line(&self, suite: &str) -> String {
        format!("deb [signed-by={KEYRING}] {} {suite} main", self.mirror)
    }
}

/// What apt of the host says on how to fetch (proxies, time-outs, dates), as `Key "value";` lines.
/// Programs that bring their own apt configuration would otherwise not see it.
pub(crate) fn fetch_options() -> Vec<String> {
    let dump = process::output_of(Command::new("apt-config").arg("dump")).unwrap_or_default();
    String::from_utf8_lossy(&dump)
        .lines()
        .filter(|line| is_fetch_option(line))
        .map(str::to_owned)
        .collect()
}

fn is_fetch_option(line: &str) -> bool {
    let key = line.split(' ').next().unwrap_or_default().to_ascii_lowercase();
    let wanted = ["acquire::http::", "acquire::https::", "acquire::check-"];
    wanted.iter().any(|start| key.starts_with(start)) && !line.ends_with("\"\";")
}

/// Installs mmdebstrap on the host if it is missing.
pub(crate) fn require_mmdebstrap(cache: &Cache) -> Result<()> {
    require("mmdebstrap", cache)
}

/// Installs the package of a program that has its name, if it is missing.
pub(crate) fn require(program: &str, cache: &Cache) -> Result<()> {
    if is_installed(program) { Ok(()) } else { install(program, cache) }
}

/// Installs libclang on the host if it is missing: generators of bindings read headers with it.
pub(crate) fn require_libclang(cache: &Cache) -> Result<()> {
    // Not libclang-cpp, which is another library and can be there without it.
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_name().to_str()?.starts_with("llvm-").then(|| entry.path().join("lib"))
    });
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let is_libclang = |file: fs::DirEntry| {
        file.file_name().to_str().is_some_and(|name| name.starts_with("libclang.so"))
    };
    if files.into_iter().any(is_libclang) { Ok(()) } else { install("libclang1", cache) }
}

/// The families of systems that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Debian,
    DerivedFromDebian,
}

impl System {
    fn of_this_machine() -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::Host(format!(
                "the virtual machine needs an x86-64 host, this one is {}",
                std::env::consts::ARCH
            )));
        }
        let text = read_lossy(Path::new("/etc/os-release"));
        match Self::from_os_release(&text) {
            Some(system) if is_installed("apt-get") => Ok(system),
            _ => {
                let name = value_of(&text, "PRETTY_NAME").unwrap_or_else(|| "this system".into());
                Err(Error::Host(format!(
                    "the virtual machine is made with apt, and {name} is neither Debian nor Ubuntu: \
                     run it in a container or virtual machine that is"
                )))
            }
        }
    }

    fn from_os_release(text: &str) -> Option<Self> {
        let id = value_of(text, "ID")?;
        let like = value_of(text, "ID_LIKE").unwrap_or_default();
        if id == "debian" {
            Some(Self::Debian)
        } else if id == "ubuntu" || like.split(' ').any(|word| ["debian", "ubuntu"].contains(&word))
        {
            Some(Self::DerivedFromDebian)
        } else {
            None
        }
    }
}

/// The value of a `KEY=value` line, quotes removed.
fn value_of(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    })
}

/// Installs a package on the host with apt.
fn install(package: &str, cache: &Cache) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Host(format!("this needs root, or first: apt-get install {package}")));
    }
    let log = cache.folder().join("apt.log");
    let step = Step::start(format!("installing {package} on this machine"));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        process::run_logged(&mut command, &log, &step)
    };
    apt(&["update"])?;
    apt(&["install", "--yes", "--no-install-recommends", package])?;
    step.done();
    Ok(())
}

/// The mirror of the machine's own apt sources.
fn own_mirror() -> Option<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let mut parts: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    parts.sort();
    files.extend(parts);
    let codename = value_of(&read_lossy(Path::new("/etc/os-release")), "VERSION_CODENAME");
    let sources: Vec<Source> = files
        .iter()
        .flat_map(|file| match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => parse_one_line(&read_lossy(file)),
            Some("sources") => parse_deb822(&read_lossy(file)),
            _ => Vec::new(),
        })
        .collect();
    main_archive(&sources, codename.as_deref().unwrap_or("stable"))
}

/// The first source that carries the main archive: not security, not a third party's.
fn main_archive(sources: &[Source], codename: &str) -> Option<String> {
    let named = ["stable", "testing", "unstable", "sid", codename];
    sources
        .iter()
        .find(|source| {
            source.components.iter().any(|component| component == "main")
                && source.suites.iter().any(|suite| named.contains(&suite.as_str()))
        })
        .map(|source| source.uri.trim_end_matches('/').to_owned())
}

/// One enabled binary source of apt.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
}

/// Reads the one-line format: `deb [options] uri suite component…`.
fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines()
        .filter_map(|line| {
            let line = line.split('#').next().unwrap_or_default().trim();
            let rest = line.strip_prefix("deb")?;
            let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']')?.1,
                None => rest,
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            let (uri, suite) = (words.next()?, words.next()?);
            Some(Source { uri, suites: vec![suite], components: words.collect() })
        })
        .collect()
}

/// Reads the deb822 format: paragraphs of `Field: values`, continued on indented lines.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut paragraphs: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines() {
        if line.trim().is_empty() {
            paragraphs.push(Vec::new());
        } else if line.starts_with('#') {
            // A comment does not end a field.
        } else if let Some(paragraph) = paragraphs.last_mut() {
            if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = paragraph.last_mut() {
                    value.push(' ');
                    value.push_str(line.trim());
                }
            } else if let Some((field, value)) = line.split_once(':') {
                paragraph.push((field.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
    }
    paragraphs.iter().flat_map(|paragraph| sources_of(paragraph)).collect()
}

fn sources_of(paragraph: &[(String, String)]) -> Vec<Source> {
    let words = |wanted: &str| -> Vec<String> {
        paragraph
            .iter()
            .find(|(field, _)| field == wanted)
            .map(|(_, value)| value.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    };
    let disabled = words("enabled").first().is_some_and(|word| {
        ["no", "false", "0", "off"].contains(&word.to_ascii_lowercase().as_str())
    });
    if disabled || !words("types").iter().any(|word| word == "deb") {
        return Vec::new();
    }
    words("uris")
        .into_iter()
        .map(|uri| Source { uri, suites: words("suites"), components: words("components") })
        .collect()
}

/// The mirror that mmdebstrap itself falls back to for Debian.
fn default_mirror() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("mmdebstrap"))
        .find(|file| file.is_file())
        .and_then(|file| mirror_in_script(&read_lossy(&file)))
}

/// The first quoted `http(s)://…/debian` in a script.
fn mirror_in_script(text: &str) -> Option<String> {
    text.split(['"', '\''])
        .map(|word| word.trim_end_matches('/'))
        .find(|word| {
            let address = word.strip_prefix("http://").or_else(|| word.strip_prefix("https://"));
            address.is_some_and(|address| {
                address.ends_with("/debian") && !address.contains([' ', '$', '\n'])
            })
        })
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_sources_are_read_with_and_without_options() {
        let text = "# deb http://old.invalid/debian sid main\n\
                    deb-src http://a.invalid/debian trixie main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://b.invalid/debian/ trixie main contrib # x\n\
                    deb http://c.invalid/debian-security trixie-security main\n\
                    deb\n";
        let sources = parse_one_line(text);
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].uri, "http://b.invalid/debian/");
        assert_eq!(sources[0].components, ["main", "contrib"]);
        assert_eq!(main_archive(&sources, "trixie").as_deref(), Some("http://b.invalid/debian"));
        assert_eq!(main_archive(&sources, "bookworm"), None);
    }

    #[test]
    fn deb822_sources_are_read_with_comments_continuations_and_switched_off_ones() {
        let text = "Types: deb\n# a note\nURIs: http://a.invalid/debian-security\nSuites: trixie-security\n\
                    Components: main\n\nTypes: deb deb-src\nURIs: http://b.invalid/debian\n\
                    Suites: trixie\n trixie-updates\nComponents: main\n\n\
                    Types: deb\nEnabled: no\nURIs: http://c.invalid/debian\nSuites: sid\nComponents: main\n\n\
                    Types: deb\nURIs: http://d.invalid/tool\nSuites: stable\nComponents: tool\n";
        let sources = parse_deb822(text);
        assert_eq!(sources.len(), 3);
        assert_eq!(sources[1].suites, ["trixie", "trixie-updates"]);
        assert_eq!(main_archive(&sources, "trixie").as_deref(), Some("http://b.invalid/debian"));
        assert_eq!(main_archive(&sources, "bookworm"), None);
    }

    #[test]
    fn systems_are_told_apart() {
        let of = System::from_os_release;
        assert_eq!(of("NAME=\"Debian\"\nID=debian\n"), Some(System::Debian));
        assert_eq!(of("ID=ubuntu\nID_LIKE=debian\n"), Some(System::DerivedFromDebian));
        assert_eq!(
            of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
            Some(System::DerivedFromDebian)
        );
        assert_eq!(of("ID=fedora\n"), None);
        assert_eq!(of("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), None);
    }

    #[test]
    fn the_default_mirror_is_the_first_quoted_debian_archive() {
        let text = "my $x = \"http://$host/debian\";\nmy $m = 'http://mirror.invalid/debian';\n\
                    my $s = 'http://security.invalid/debian-security';";
        assert_eq!(mirror_in_script(text).as_deref(), Some("http://mirror.invalid/debian"));
        assert_eq!(mirror_in_script("nothing here"), None);
    }

    #[test]
    fn only_options_on_fetching_are_passed_on() {
        assert!(is_fetch_option("Acquire::http::Proxy \"http://proxy.invalid:3142\";"));
        assert!(is_fetch_option("Acquire::Check-Valid-Until \"false\";"));
        assert!(!is_fetch_option("Acquire::http::Proxy \"\";"));
        assert!(!is_fetch_option("Acquire::Languages \"none\";"));
        assert!(!is_fetch_option("APT::Architecture \"amd64\";"));
    }
}
