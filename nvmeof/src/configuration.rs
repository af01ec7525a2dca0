//! The JSON configuration of nvme-cli, usually `/etc/nvme/config.json`.

use std::{fs, net::IpAddr, path::Path, time::Duration};

use serde_json::{Map, Value};

use crate::{Error, Host, HostId, Nqn, Options, Reconnect, Result, Target};

/// The most bytes that a configuration may have.
const MAX_BYTES: u64 = 1 << 20;

/// What nvme-cli's configuration says: targets over RDMA, with their settings.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Configuration {
    /// Subsystems and discovery services that are reached over RDMA, in the order of the file.
    pub targets: Vec<Target>,
    /// How many ports of other transports were left out.
    pub others: usize,
}

impl Configuration {
    /// Where nvme-cli keeps its configuration.
    pub const PATH: &'static str = "/etc/nvme/config.json";

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if it cannot be read, and as [`Configuration::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |source| Error::File { path: path.to_owned(), source };
        let length = fs::metadata(path).map_err(failed)?.len();
        if length > MAX_BYTES {
            return Err(Error::OutOfRange {
                what: "the length of the configuration",
                asked: length,
                min: 0,
                max: MAX_BYTES,
            });
        }
        Self::parse(&fs::read_to_string(path).map_err(failed)?)
    }

    /// Reads the text of a configuration: a list of hosts, each with subsystems, each with ports.
    ///
    /// Settings that have no meaning over RDMA, or none for a program that is not the kernel, are
    /// left alone. Hosts without a name of their own are this host, as
    /// [`Options::host`](crate::Options::host) says.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] if it is no JSON, and [`Error::InvalidArgument`],
    /// [`Error::InvalidName`] or [`Error::InvalidSecret`] for values that make no sense.
    pub fn parse(text: &str) -> Result<Self> {
        let value: Value =
            serde_json::from_str(text).map_err(|source| Error::Configuration { source })?;
        let hosts = match &value {
            Value::Object(object) => list(object, "hosts")?,
            Value::Array(hosts) => hosts,
            _ => return Err(wrong("the configuration", &value, "is a list of hosts")),
        };
        let mut configuration = Self::default();
        for host in hosts {
            configuration.add_host(object(host, "a host")?)?;
        }
        Ok(configuration)
    }

    fn add_host(&mut self, host: &Map<String, Value>) -> Result<()> {
        let mut options = Options::new();
        if let Some(name) = text(host, "hostnqn")? {
            let nqn = Nqn::new(name)?;
            let id = match text(host, "hostid")? {
                Some(id) => id.parse()?,
                None => match name.rsplit_once(":uuid:") {
                    Some((_, id)) => id.parse()?,
                    None => HostId::random()?,
                },
            };
            options = options.host(Host { nqn, id });
        }
        if let Some(secret) = text(host, "dhchap_key")? {
            options = options.secret(secret.parse()?);
        }
        for subsystem in list(host, "subsystems")? {
            let subsystem = object(subsystem, "a subsystem")?;
            let nqn = match text(subsystem, "nqn")? {
                Some(name) => Nqn::new(name)?,
                None => Nqn::discovery(),
            };
            for port in list(subsystem, "ports")? {
                self.add_port(&nqn, options.clone(), object(port, "a port")?)?;
            }
        }
        Ok(())
    }

    fn add_port(
        &mut self,
        subsystem: &Nqn,
        mut options: Options,
        port: &Map<String, Value>,
    ) -> Result<()> {
        if text(port, "transport")? != Some("rdma") {
            self.others += 1;
            return Ok(());
        }
        let address = text(port, "traddr")?
            .ok_or_else(|| wrong("a port without traddr", &Value::Null, "needs an address"))?;
        for (name, value) in port {
            let value = match value {
                Value::String(value) => value.clone(),
                Value::Number(value) => value.to_string(),
                Value::Bool(value) => value.to_string(),
                Value::Null => continue,
                Value::Array(_) | Value::Object(_) => {
                    return Err(wrong("a setting of a port", value, "is one value"));
                }
            };
            options = match name.as_str() {
                "dhchap_key" => options.secret(value.parse()?),
                "dhchap_ctrl_key" => options.controller_secret(value.parse()?),
                // Read above, and what only the kernel has a use for.
                "transport" | "traddr" | "host_iface" | "duplicate_connect" | "persistent"
                | "discovery" | "disable_sqflow" | "hdr_digest" | "data_digest" | "tls"
                | "tls_key" | "concat" | "keyring" | "nr_write_queues" | "nr_poll_queues"
                | "fast_io_fail_tmo" => options,
                name => options.set(name, &value)?,
            };
        }
        // An IPv6 address stands there without brackets.
        let target = Target::new(address, subsystem.clone(), options)?;
        self.targets.push(target);
        Ok(())
    }
}

impl Options {
    /// Sets what nvme-cli calls `name`.
    pub(crate) fn set(self, name: &str, value: &str) -> Result<Self> {
        let reconnect = self.reconnect;
        match name {
            "trsvcid" => Ok(self.port(number(name, value)?)),
            "host_traddr" => {
                let address = value.parse::<IpAddr>();
                let source =
                    address.map_err(|_| not(name, value, "is an IP address of this host"))?;
                Ok(self.source(source))
            }
            "nr_io_queues" => Ok(self.io_queues(number(name, value)?)),
            "queue_size" => Ok(self.queue_entries(number(name, value)?)),
            "keep_alive_tmo" => {
                let seconds = number::<u32>(name, value)?;
                let time = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                Ok(self.keep_alive(time))
            }
            "tos" => Ok(self.service_type(number(name, value)?)),
            "reconnect_delay" => {
                let delay = Duration::from_secs(number::<u32>(name, value)?.into());
                Ok(self.reconnect(Reconnect { delay, max_delay: delay, ..reconnect }))
            }
            "ctrl_loss_tmo" => {
                // Minus one: never give up.
                let give_up_after = match number::<i64>(name, value)? {
                    seconds @ 0.. => Duration::from_secs(seconds.unsigned_abs()),
                    _ => Duration::MAX,
                };
                Ok(self.reconnect(Reconnect { give_up_after, ..reconnect }))
            }
            "dhchap_secret" | "dhchap_key" | "dhchap_ctrl_secret" | "dhchap_ctrl_key" => {
                Err(not("a setting", name, "is a secret, which does not belong here"))
            }
            _ => Err(not("a setting", name, "is not known")),
        }
    }
}

fn number<N: std::str::FromStr>(what: &str, value: &str) -> Result<N> {
    value.parse().map_err(|_| not(what, value, "is a whole number, and not too large"))
}

fn not(what: &str, given: &str, rule: &'static str) -> Error {
    let given = format!("{what} {}", given.chars().take(256).collect::<String>());
    Error::InvalidArgument { what: "setting", given, rule }
}

fn wrong(what: &'static str, given: &Value, rule: &'static str) -> Error {
    let kind = match given {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Error::InvalidArgument { what, given: kind.to_owned(), rule }
}

fn object<'v>(value: &'v Value, what: &'static str) -> Result<&'v Map<String, Value>> {
    value.as_object().ok_or_else(|| wrong(what, value, "is an object"))
}

/// The list of that name, empty if there is none.
fn list<'v>(object: &'v Map<String, Value>, name: &'static str) -> Result<&'v [Value]> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(values)) => Ok(values),
        Some(other) => Err(wrong(name, other, "is a list")),
    }
}

fn text<'v>(object: &'v Map<String, Value>, name: &'static str) -> Result<Option<&'v str>> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong(name, other, "is text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"[
      {
        "hostnqn": "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5",
        "hostid": "2cd2c43b-a90a-45c1-a8cd-86b33ab273b5",
        "dhchap_key": "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "subsystems": [
          {
            "nqn": "nqn.2024-01.org.example:disk",
            "ports": [
              {
                "transport": "rdma",
                "traddr": "10.99.0.1",
                "host_traddr": "10.99.0.2",
                "trsvcid": "4421",
                "nr_io_queues": 4,
                "queue_size": 64,
                "keep_alive_tmo": 30,
                "reconnect_delay": 2,
                "ctrl_loss_tmo": -1,
                "tos": 104,
                "tls": false
              },
              { "transport": "tcp", "traddr": "10.99.0.1" }
            ]
          },
          { "ports": [ { "transport": "rdma", "traddr": "fe80::1" } ] }
        ]
      }
    ]"#;

    #[test]
    fn ports_over_rdma_become_targets_with_their_settings() {
        let configuration = Configuration::parse(FILE).unwrap();
        assert_eq!(configuration.others, 1);
        let [disk, discovery] = &configuration.targets[..] else { panic!("two targets") };
        assert_eq!(disk.address, "10.99.0.1");
        assert_eq!(disk.subsystem.as_str(), "nqn.2024-01.org.example:disk");
        let options = &disk.options;
        assert_eq!((options.port, options.io_queues, options.queue_entries), (4421, 4, 64));
        assert_eq!(options.source, Some("10.99.0.2".parse().unwrap()));
        assert_eq!(options.keep_alive, Some(Duration::from_secs(30)));
        assert_eq!(options.service_type, Some(104));
        assert_eq!(options.reconnect.delay, Duration::from_secs(2));
        assert_eq!(options.reconnect.give_up_after, Duration::MAX);
        assert!(options.secret.is_some());
        assert!(discovery.subsystem.is_discovery());
        assert_eq!(discovery.options.host, options.host);
    }

    #[test]
    fn a_configuration_in_an_object_is_read_too() {
        let wrapped = format!("{{\"hosts\": {FILE}}}");
        assert_eq!(Configuration::parse(&wrapped).unwrap().targets.len(), 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            "",
            "3",
            "[3]",
            r#"[{"subsystems": 3}]"#,
            r#"[{"subsystems": [{"ports": [{"transport": "rdma"}]}]}]"#,
            r#"[{"hostnqn": ""}]"#,
            r#"[{"hostnqn": "a", "hostid": "b"}]"#,
            r#"[{"dhchap_key": "DHHC"}]"#,
            &FILE.replace("64", "640000000"),
            &FILE.replace("\"tos\"", "\"toss\""),
            &FILE.replace("104", "[]"),
        ] {
            Configuration::parse(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn no_error_tells_a_secret() {
        let broken = FILE.replace("AAEC", "AAED");
        let error = Configuration::parse(&broken).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("AAED"));
    }

    #[test]
    fn text_from_anywhere_is_read_or_refused() {
        let mut random = crate::testing::Random::new(14);
        for _ in 0..2_000 {
            let mut text = FILE.to_owned().into_bytes();
            for _ in 0..=random.below(4) {
                let at = random.below(text.len());
                text[at] = 0x20 + u8::try_from(random.below(0x5f)).unwrap();
            }
            let _read_or_refused = Configuration::parse(&String::from_utf8(text).unwrap());
        }
    }

    #[test]
    fn files_that_are_not_there_are_named() {
        let error = Configuration::read("/nonexistent/config.json").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/config.json"));
    }
}
