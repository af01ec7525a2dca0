//! What the examples of `nvmeof` share: the arguments that say where the target is.

use std::{error::Error, net::IpAddr, path::PathBuf, time::Duration};

use nvmeof::{Configuration, Controller, Host, Options, Target};

/// Where the target is and how to connect.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TargetArguments {
    /// The target's address, or a URI that begins with `nvme+rdma://`
    target: String,
    /// The subsystem, if the target is an address
    subsystem: Option<String>,
    /// The target's port
    #[arg(long, default_value_t = 4420)]
    port: u16,
    /// The address to connect from, which chooses the device
    #[arg(long)]
    source: Option<IpAddr>,
    /// This host's name; from /etc/nvme/hostnqn otherwise
    #[arg(long)]
    host_nqn: Option<String>,
    /// The file with this host's secret (DHHC-1:...), for targets that ask for one
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// The file with the controller's secret, for it to prove itself
    #[arg(long)]
    controller_secret_file: Option<PathBuf>,
    /// Keep-alive time in seconds; 0 switches it off
    #[arg(long, default_value_t = 5)]
    keep_alive: u32,
}

impl TargetArguments {
    /// The target with its settings; `queues` queues of `entries` entries each.
    pub(crate) fn target(&self, queues: u16, entries: u16) -> Result<Target, Box<dyn Error>> {
        let mut target = if self.target.contains("://") {
            Target::from_uri(&self.target)?
        } else {
            let subsystem = match &self.subsystem {
                Some(name) => name.parse()?,
                None => nvmeof::Nqn::discovery(),
            };
            Target::new(&self.target, subsystem, Options::new().port(self.port))?
        };
        let keep_alive = (self.keep_alive > 0).then(|| Duration::from_secs(self.keep_alive.into()));
        let mut options = target.options.io_queues(queues).queue_entries(entries);
        options = options.keep_alive(keep_alive);
        if let Some(source) = self.source {
            options = options.source(source);
        }
        if let Some(name) = &self.host_nqn {
            let host = Host::from_system()?;
            options = options.host(Host { nqn: name.parse()?, ..host });
        }
        if let Some(path) = &self.secret_file {
            options = options.secret(std::fs::read_to_string(path)?.parse()?);
        }
        if let Some(path) = &self.controller_secret_file {
            options = options.controller_secret(std::fs::read_to_string(path)?.parse()?);
        }
        target.options = options;
        Ok(target)
    }

    /// Connects.
    pub(crate) fn connect(&self, queues: u16, entries: u16) -> Result<Controller, Box<dyn Error>> {
        Ok(self.target(queues, entries)?.connect()?)
    }
}

/// The targets of nvme-cli's configuration.
pub(crate) fn configured() -> Result<Vec<Target>, Box<dyn Error>> {
    Ok(Configuration::read(Configuration::PATH)?.targets)
}
