//! Who this host is: its name and identifier, which targets grant access by.

use std::{fmt, fs, path::Path, str::FromStr};

use crate::{Error, Nqn, Result};

/// A host's name and identifier.
///
/// All connections of one host must use the same pair; targets refuse a name that comes with
/// different identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's qualified name.
    pub nqn: Nqn,
    /// The host's identifier.
    pub id: HostId,
}

impl Host {
    /// Reads `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, as nvme-cli does, and makes up what is
    /// not there: a name out of the identifier, or both at random.
    ///
    /// What is made up lasts as long as the process wants it to: keep the value and pass it to
    /// every connection.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if a file is there but cannot be read, [`Error::InvalidName`] or
    /// [`Error::InvalidArgument`] if its content is not a name or an identifier, and
    /// [`Error::Random`] if the system has no random bytes.
    pub fn from_system() -> Result<Self> {
        Self::from_directory(Path::new("/etc/nvme"))
    }

    /// A new host with a random identifier.
    ///
    /// # Errors
    ///
    /// [`Error::Random`] if the system has no random bytes.
    pub fn random() -> Result<Self> {
        let id = HostId::random()?;
        Ok(Self { nqn: id.to_nqn()?, id })
    }

    fn from_directory(directory: &Path) -> Result<Self> {
        let nqn = first_line(&directory.join("hostnqn"))?.map(Nqn::new).transpose()?;
        let id = match first_line(&directory.join("hostid"))? {
            Some(id) => id.parse()?,
            // A name made out of an identifier still tells it.
            None => match nqn.as_ref().and_then(|nqn| nqn.as_str().rsplit_once(":uuid:")) {
                Some((_, id)) if id.parse::<HostId>().is_ok() => id.parse()?,
                _ => HostId::random()?,
            },
        };
        match nqn {
            Some(nqn) => Ok(Self { nqn, id }),
            None => Ok(Self { nqn: id.to_nqn()?, id }),
        }
    }
}

/// A host identifier: a UUID, its sixteen bytes in the order they are written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// A random (version 4) identifier.
    ///
    /// # Errors
    ///
    /// [`Error::Random`] if the system has no random bytes.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        crate::random::fill(&mut bytes)?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }

    fn to_nqn(self) -> Result<Nqn> {
        Nqn::new(format!("nqn.2014-08.org.nvmexpress:uuid:{self}"))
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for HostId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::InvalidArgument {
            what: "host identifier",
            given: text.chars().take(64).collect(),
            rule: "is a UUID such as 2cd2c43b-a90a-45c1-a8cd-86b33ab273b5",
        };
        let mut digits = Vec::with_capacity(32);
        for (index, character) in text.trim().chars().enumerate() {
            match (index, character.to_digit(16)) {
                (8 | 13 | 18 | 23, None) if character == '-' => {}
                (8 | 13 | 18 | 23, _) => return Err(invalid()),
                (_, Some(digit)) => digits.push(digit.to_le_bytes()[0]),
                (_, None) => return Err(invalid()),
            }
        }
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return Err(invalid());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

/// The first line of a small file; nothing if there is no such file or the line is empty.
fn first_line(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(content) => {
            let line = content.lines().next().unwrap_or_default().trim();
            Ok((!line.is_empty()).then(|| line.to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_written_as_they_are_read() {
        let text = "2cd2c43b-a90a-45c1-a8cd-86b33ab273b5";
        let id: HostId = text.parse().unwrap();
        assert_eq!(id.0[..4], [0x2c, 0xd2, 0xc4, 0x3b]);
        assert_eq!(id.to_string(), text);
        for wrong in ["", "2cd2c43b", "2cd2c43b-a90a-45c1-a8cd-86b33ab273b", &text.replace('-', "")]
        {
            assert!(wrong.parse::<HostId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_directory_lacks_is_made_up_consistently() {
        let directory = std::env::temp_dir().join(format!("nvmeof-host-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let host = Host::from_directory(&directory).unwrap();
        assert!(host.nqn.as_str().ends_with(&host.id.to_string()));

        fs::write(directory.join("hostnqn"), format!("{}\n", host.nqn)).unwrap();
        assert_eq!(Host::from_directory(&directory).unwrap(), host);

        fs::write(directory.join("hostid"), "not a uuid\n").unwrap();
        Host::from_directory(&directory).unwrap_err();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn random_hosts_differ() {
        assert_ne!(Host::random().unwrap(), Host::random().unwrap());
    }
}
