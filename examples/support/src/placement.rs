//! Who this process is, from what its launcher put into the environment: the table in the crate docs.

use std::{fmt, net::Ipv4Addr, os::unix::process::parent_id};

use crate::{
    Error, Result,
    environment::Environment,
    host_list::first_host,
    meeting::{Meeting, digest, is_loopback, ports_beside, ports_of_job, this_host},
};

/// What started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nothing: the ranks are threads of this process.
    Threads,
    /// Somebody, on two command lines: rank 0 is the server, rank 1 its client.
    ByHand,
    /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, set by hand or by a script.
    Variables,
    /// `torchrun` of `PyTorch`.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, Intel MPI, or another with the PMI variables.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    /// What started this process as a rank; `None` if nothing did.
    ///
    /// # Errors
    ///
    /// [`Error::Variable`] for a variable that is missing or does not fit.
    pub fn of_process() -> Result<Option<Self>> {
        let placement = Placement::find(&Environment::of_process())?;
        Ok(placement.map(|placement| placement.launcher))
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Threads => "threads of one process",
            Self::ByHand => "server and client",
            Self::Variables => "environment variables",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "mpirun (Open MPI)",
            Self::Pmi => "mpiexec (PMI)",
            Self::Slurm => "srun (Slurm)",
        })
    }
}

/// Rank, size and place to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) launcher: Launcher,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) local_rank: usize,
    /// `None` if there is nobody to meet.
    pub(crate) meeting: Option<Meeting>,
}

impl Placement {
    /// One of two that were started by hand; the client knows the server's host.
    pub(crate) fn by_hand(host: Option<&str>, port: u16) -> Self {
        let everywhere = Ipv4Addr::UNSPECIFIED.to_string();
        let meeting = Meeting {
            hosts: vec![host.map_or(everywhere, str::to_owned)],
            ports: vec![port],
            job: digest(&["server and client", &port.to_string()]),
            remedy_if_wrong: None,
        };
        let rank = usize::from(host.is_some());
        Self { launcher: Launcher::ByHand, rank, size: 2, local_rank: 0, meeting: Some(meeting) }
    }

    /// What the launcher says, `None` without one.
    pub(crate) fn find(environment: &Environment<'_>) -> Result<Option<Self>> {
        if environment.has("RANK")? {
            by_variables(environment).map(Some)
        } else if environment.has("OMPI_COMM_WORLD_RANK")? {
            by_open_mpi(environment).map(Some)
        } else if environment.has("PMI_RANK")? && !is_srun_with_pmi(environment)? {
            by_pmi(environment).map(Some)
        } else if environment.has("SLURM_PROCID")? && is_slurm_step(environment)? {
            by_slurm(environment).map(Some)
        } else {
            without_rank(environment)
        }
    }
}

/// A size without a rank is a mistake that would otherwise start every rank many times.
fn without_rank(environment: &Environment<'_>) -> Result<Option<Placement>> {
    for (size, rank) in [
        ("WORLD_SIZE", "RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
    ] {
        if environment.has(size)? {
            return Err(Error::variable(rank, None, format!("needed because {size} is set")));
        }
    }
    Ok(None)
}

fn by_variables(environment: &Environment<'_>) -> Result<Placement> {
    let (rank, size) = rank_and_size(environment, "RANK", "WORLD_SIZE")?;
    let run = environment.text("TORCHELASTIC_RUN_ID")?;
    let launcher = if run.is_some() { Launcher::Torchrun } else { Launcher::Variables };
    let mut meeting = None;
    if size > 1 {
        let needed = |name| Error::variable(name, None, "needed because RANK is set");
        let host = master_address(environment)?.ok_or_else(|| needed("MASTER_ADDR"))?;
        let port = environment.port("MASTER_PORT")?.ok_or_else(|| needed("MASTER_PORT"))?;
        meeting = Some(Meeting {
            hosts: vec![host],
            ports: if run.is_some() { ports_beside(port) } else { vec![port] },
            job: digest(&["variables", run.as_deref().unwrap_or_default(), &port.to_string()]),
            remedy_if_wrong: None,
        });
    }
    let everyone_here = meeting.as_ref().is_some_and(Meeting::is_loopback);
    let otherwise = if everyone_here { rank } else { 0 };
    let local_rank = local_rank(environment, &["LOCAL_RANK"], size, otherwise)?;
    Ok(Placement { launcher, rank, size, local_rank, meeting })
}

fn by_open_mpi(environment: &Environment<'_>) -> Result<Placement> {
    let (rank, size) = rank_and_size(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let local_rank = local_rank(environment, &["OMPI_COMM_WORLD_LOCAL_RANK"], size, 0)?;
    // PMIX_NAMESPACE names the job from Open MPI 4 on; the other is what 3 and older have.
    let job = environment.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])?;
    let job = job.map_or_else(String::new, |(_, job)| job);
    let meeting = meet(environment, size, &["Open MPI", &job], || {
        if environment.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(size) {
            return Ok(Host::Known(this_host()));
        }
        Ok(Host::Guessed(
            hosts_of_mpirun(environment)?,
            "rank 0 does not run on the host of mpirun: give mpirun \
             `-x MASTER_ADDR=HOST -x MASTER_PORT=PORT` with the host of rank 0",
        ))
    })?;
    Ok(Placement { launcher: Launcher::OpenMpi, rank, size, local_rank, meeting })
}

fn by_pmi(environment: &Environment<'_>) -> Result<Placement> {
    let (rank, size) = rank_and_size(environment, "PMI_RANK", "PMI_SIZE")?;
    let local_rank = local_rank(environment, &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"], size, 0)?;
    // These launchers give the job no name. Its port is one; on one host, all ranks have one parent.
    let port = environment.port("MASTER_PORT")?;
    if port.is_none() && master_address(environment)?.is_some() {
        return Err(Error::variable("MASTER_PORT", None, "needed because MASTER_ADDR is set"));
    }
    let job = port.map_or_else(|| format!("parent {}", parent_id()), |port| port.to_string());
    let meeting = meet(environment, size, &["PMI", &job], || {
        if let Some((name, _)) = environment.first(&["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"])?
            && environment.number(name)? == Some(size)
        {
            return Ok(Host::Known(this_host()));
        }
        Err(Error::variable(
            "MASTER_ADDR",
            None,
            "mpiexec does not say where rank 0 runs; set MASTER_ADDR to its host and MASTER_PORT \
             to a free port there (mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT)",
        ))
    })?;
    Ok(Placement { launcher: Launcher::Pmi, rank, size, local_rank, meeting })
}

fn by_slurm(environment: &Environment<'_>) -> Result<Placement> {
    let name = if environment.has("SLURM_STEP_NUM_TASKS")? {
        "SLURM_STEP_NUM_TASKS"
    } else {
        "SLURM_NTASKS"
    };
    let (rank, size) = rank_and_size(environment, "SLURM_PROCID", name)?;
    let local_rank = local_rank(environment, &["SLURM_LOCALID"], size, 0)?;
    let job = environment.first(&["SLURM_JOB_ID", "SLURM_JOBID"])?.map(|(_, job)| job);
    let step = environment.first(&["SLURM_STEP_ID", "SLURM_STEPID"])?.map(|(_, step)| step);
    let (job, step) = (job.unwrap_or_default(), step.unwrap_or_default());
    let meeting = meet(environment, size, &["Slurm", &job, &step], || {
        for nodes in ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"] {
            match environment.number(nodes)? {
                Some(1) => return Ok(Host::Known(this_host())),
                Some(_) => break,
                None => {}
            }
        }
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let (name, list) = environment
            .first(&lists)?
            .ok_or_else(|| Error::variable(lists[0], None, "needed because SLURM_PROCID is set"))?;
        let host =
            first_host(&list).map_err(|problem| Error::variable(name, Some(&list), problem))?;
        Ok(Host::Known(host))
    })?;
    Ok(Placement { launcher: Launcher::Slurm, rank, size, local_rank, meeting })
}

/// Slurm leaves `SLURM_PROCID=0` in batch scripts as well; only `srun` makes a step.
fn is_slurm_step(environment: &Environment<'_>) -> Result<bool> {
    let signs = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"];
    Ok(environment.first(&signs)?.is_some())
}

/// `srun --mpi=pmi2` sets the PMI variables too; its own say where rank 0 is.
fn is_srun_with_pmi(environment: &Environment<'_>) -> Result<bool> {
    let rank = environment.text("PMI_RANK")? == environment.text("SLURM_PROCID")?;
    let size = environment.text("PMI_SIZE")? == environment.text("SLURM_STEP_NUM_TASKS")?;
    Ok(rank && size && is_slurm_step(environment)?)
}

enum Host {
    Known(String),
    Guessed(Vec<String>, &'static str),
}

/// `MASTER_ADDR` and `MASTER_PORT` where set, what the launcher tells where not.
fn meet(
    environment: &Environment<'_>,
    size: usize,
    name: &[&str],
    ask_launcher: impl FnOnce() -> Result<Host>,
) -> Result<Option<Meeting>> {
    if size == 1 {
        return Ok(None);
    }
    let (hosts, remedy_if_wrong) = match master_address(environment)? {
        Some(host) => (vec![host], None),
        None => match ask_launcher()? {
            Host::Known(host) => (vec![host], None),
            Host::Guessed(hosts, remedy) => (hosts, Some(remedy)),
        },
    };
    let job = digest(name);
    let ports = match environment.port("MASTER_PORT")? {
        Some(port) => vec![port],
        None => ports_of_job(job),
    };
    Ok(Some(Meeting { hosts, ports, job, remedy_if_wrong }))
}

/// Where `mpirun` itself runs: usually, and not always, where rank 0 is.
fn hosts_of_mpirun(environment: &Environment<'_>) -> Result<Vec<String>> {
    const OPEN_MPI_4: &str = "OMPI_MCA_orte_hnp_uri";
    const OPEN_MPI_5: &str = "PMIX_NAMESPACE";
    if let Some(uri) = environment.text(OPEN_MPI_4)? {
        let hosts = hosts_of_uri(&uri);
        if !hosts.is_empty() {
            return Ok(hosts);
        }
    }
    let namespace = environment.text(OPEN_MPI_5)?;
    namespace.as_deref().and_then(host_of_namespace).map(|host| vec![host]).ok_or_else(|| {
        Error::variable(
            "MASTER_ADDR",
            None,
            "the ranks are on several hosts and mpirun does not say where; give it \
             `-x MASTER_ADDR=HOST -x MASTER_PORT=PORT` with the host of rank 0",
        )
    })
}

/// `10.0.0.1`, `fe80::1` of `123.0;tcp://10.0.0.1,10.1.0.1:4711;tcp6://[fe80::1]:4712`.
fn hosts_of_uri(uri: &str) -> Vec<String> {
    let places = uri.split(';').filter_map(|part| {
        let (scheme, place) = part.split_once("://")?;
        scheme.starts_with("tcp").then_some(place.rsplit_once(':')?.0)
    });
    let names = places.flat_map(|place| place.trim_matches(['[', ']']).split(','));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// `node-1` of `prterun-node-1-4711@1`.
fn host_of_namespace(namespace: &str) -> Option<String> {
    let (name, _) = namespace.strip_prefix("prterun-")?.rsplit_once('@')?;
    let (host, process) = name.rsplit_once('-')?;
    let is_process = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    (is_process && !host.is_empty()).then(|| host.to_owned())
}

fn rank_and_size(environment: &Environment<'_>, rank: &str, size: &str) -> Result<(usize, usize)> {
    const LARGEST_WORLD: usize = 1 << 16;
    let ranks = environment.required_number(size, rank)?;
    if !(1..=LARGEST_WORLD).contains(&ranks) {
        let problem = format!("not a number of ranks from 1 to {LARGEST_WORLD}");
        return Err(Error::variable(size, Some(&ranks.to_string()), problem));
    }
    let number = environment.required_number(rank, size)?;
    if number >= ranks {
        let problem = format!("{size} is {ranks}, so ranks go from 0 to {}", ranks - 1);
        return Err(Error::variable(rank, Some(&number.to_string()), problem));
    }
    Ok((number, ranks))
}

fn local_rank(
    environment: &Environment<'_>,
    names: &[&str],
    size: usize,
    otherwise: usize,
) -> Result<usize> {
    let Some((name, _)) = environment.first(names)? else { return Ok(otherwise) };
    let number = environment.number(name)?.unwrap_or(otherwise);
    if number < size {
        return Ok(number);
    }
    let problem = format!("there are {size} ranks in all, so it is at most {}", size - 1);
    Err(Error::variable(name, Some(&number.to_string()), problem))
}

fn master_address(environment: &Environment<'_>) -> Result<Option<String>> {
    const NAME: &str = "MASTER_ADDR";
    let Some(text) = environment.text(NAME)? else { return Ok(None) };
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
    let problem = if host.contains('/') || host.contains(char::is_whitespace) {
        "not a host name or an address"
    } else if host.matches(':').count() == 1 || host.contains(']') {
        "a host alone belongs here, the port into MASTER_PORT"
    } else {
        return Ok(Some(if is_loopback(host) { host.to_lowercase() } else { host.to_owned() }));
    };
    Err(Error::variable(NAME, Some(&text), problem))
}

#[cfg(test)]
mod tests;
