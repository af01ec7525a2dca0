use super::*;
use crate::environment::listed;

fn find(variables: &[(&str, &str)]) -> Placement {
    Placement::find(&listed(variables)).unwrap().unwrap()
}

fn problem(variables: &[(&str, &str)]) -> String {
    Placement::find(&listed(variables)).unwrap_err().to_string()
}

fn meeting(variables: &[(&str, &str)]) -> Meeting {
    find(variables).meeting.unwrap()
}

/// These variables with one of them changed, or left out.
fn but<'a>(
    variables: &[(&'a str, &'a str)],
    name: &'a str,
    value: Option<&'a str>,
) -> Vec<(&'a str, &'a str)> {
    let others = variables.iter().copied().filter(|(other, _)| *other != name);
    others.chain(value.map(|value| (name, value))).collect()
}

const BY_HAND: &[(&str, &str)] =
    &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];

const OPEN_MPI_4: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("OMPI_MCA_ess_base_jobid", "355008513"),
    (
        "OMPI_MCA_orte_hnp_uri",
        "355008512.0;tcp://192.0.2.2,198.51.100.2:43619;tcp6://[fd00::2]:53697",
    ),
    ("PMIX_NAMESPACE", "355008513"),
];

const OPEN_MPI_5: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-node-1-30935@1"),
    ("PMIX_SERVER_URI41", "prterun-node-1-30935@0.0;tcp4://127.0.0.1:54789"),
];

const HYDRA: &[(&str, &str)] = &[
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
    ("PMI_FD", "11"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "2"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "1"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "3"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "gpu[007-008]"),
    ("SLURM_JOB_NODELIST", "gpu[001-064]"),
];

#[test]
fn nothing_is_found_without_a_launcher() {
    let unrelated = [("MASTER_ADDR", "node1"), ("SLURM_JOB_ID", "1"), ("PMIX_RANK", "0")];
    assert_eq!(Placement::find(&listed(&unrelated)).unwrap(), None);
}

#[test]
fn variables_set_by_hand_meet_at_their_port() {
    let placement = find(BY_HAND);
    assert_eq!(placement.launcher, Launcher::Variables);
    assert_eq!((placement.rank, placement.size, placement.local_rank), (1, 2, 0));
    let meeting = placement.meeting.unwrap();
    assert_eq!((meeting.hosts, meeting.ports), (vec!["node1".to_owned()], vec![29500]));
}

#[test]
fn local_rank_follows_the_rank_when_all_ranks_are_here() {
    for here in ["127.0.0.1", "localhost", "::1", "[::1]"] {
        assert_eq!(find(&but(BY_HAND, "MASTER_ADDR", Some(here))).local_rank, 1, "{here}");
    }
}

#[test]
fn torchrun_keeps_its_own_port() {
    let placement = find(TORCHRUN);
    assert_eq!(placement.launcher, Launcher::Torchrun);
    assert_eq!((placement.rank, placement.size, placement.local_rank), (3, 4, 1));
    let meeting = placement.meeting.unwrap();
    assert_eq!(meeting.ports, (29501..=29508).collect::<Vec<u16>>());
}

#[test]
fn ranks_of_one_job_agree_and_jobs_differ() {
    for (launcher, rank) in [
        (TORCHRUN, "RANK"),
        (BY_HAND, "RANK"),
        (OPEN_MPI_4, "OMPI_COMM_WORLD_RANK"),
        (OPEN_MPI_5, "OMPI_COMM_WORLD_RANK"),
        (HYDRA, "PMI_RANK"),
        (SLURM, "SLURM_PROCID"),
    ] {
        assert_eq!(meeting(launcher), meeting(&but(launcher, rank, Some("0"))), "{rank}");
    }
    for (launcher, name, other) in [
        (TORCHRUN, "TORCHELASTIC_RUN_ID", "other"),
        (TORCHRUN, "MASTER_PORT", "29501"),
        (OPEN_MPI_4, "PMIX_NAMESPACE", "355008514"),
        (OPEN_MPI_5, "PMIX_NAMESPACE", "prterun-node-1-30936@1"),
        (SLURM, "SLURM_JOB_ID", "4712"),
        (SLURM, "SLURM_STEP_ID", "4"),
    ] {
        let other = meeting(&but(launcher, name, Some(other)));
        assert_ne!(meeting(launcher).job, other.job, "{name}");
    }
}

#[test]
fn open_mpi_on_one_host_meets_there() {
    let placement = find(OPEN_MPI_5);
    assert_eq!(placement.launcher, Launcher::OpenMpi);
    assert_eq!((placement.rank, placement.size, placement.local_rank), (1, 2, 1));
    let meeting = placement.meeting.unwrap();
    assert_eq!(meeting.hosts, ["127.0.0.1"]);
    assert_eq!((meeting.ports.len(), meeting.remedy_if_wrong), (8, None));
}

#[test]
fn open_mpi_on_several_hosts_meets_at_mpirun_or_says_what_to_set() {
    let guessed = meeting(OPEN_MPI_4);
    assert_eq!(guessed.hosts, ["192.0.2.2", "198.51.100.2", "fd00::2"]);
    assert!(guessed.remedy_if_wrong.unwrap().contains("-x MASTER_ADDR"));

    let several = but(OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE", Some("1"));
    assert_eq!(meeting(&several).hosts, ["node-1"]);

    let problem = problem(&but(&several, "PMIX_NAMESPACE", None));
    assert!(problem.starts_with("MASTER_ADDR is not set") && problem.contains("-x"), "{problem}");
}

#[test]
fn master_variables_override_what_a_launcher_says() {
    for launcher in [OPEN_MPI_4, OPEN_MPI_5, HYDRA, SLURM] {
        let mut with_both = launcher.to_vec();
        with_both.extend([("MASTER_ADDR", "10.0.0.9"), ("MASTER_PORT", "4000")]);
        let meeting = meeting(&with_both);
        assert_eq!(meeting.hosts, ["10.0.0.9"]);
        assert_eq!((meeting.ports, meeting.remedy_if_wrong), (vec![4000], None));
    }
}

#[test]
fn hydra_meets_on_one_host_and_says_what_to_set_on_several() {
    let placement = find(HYDRA);
    assert_eq!(placement.launcher, Launcher::Pmi);
    assert_eq!((placement.rank, placement.size, placement.local_rank), (1, 2, 1));
    assert_eq!(placement.meeting.unwrap().hosts, ["127.0.0.1"]);

    let problem = problem(&but(HYDRA, "MPI_LOCALNRANKS", Some("1")));
    assert!(problem.starts_with("MASTER_ADDR is not set"), "{problem}");
    assert!(problem.contains("-genv MASTER_ADDR"), "{problem}");
}

#[test]
fn slurm_meets_at_the_first_host_of_the_step() {
    let placement = find(SLURM);
    assert_eq!(placement.launcher, Launcher::Slurm);
    assert_eq!((placement.rank, placement.size, placement.local_rank), (1, 2, 0));
    assert_eq!(placement.meeting.unwrap().hosts, ["gpu007"]);

    let of_job = meeting(&but(SLURM, "SLURM_STEP_NODELIST", None));
    assert_eq!(of_job.hosts, ["gpu001"]);
    let one_host = meeting(&but(SLURM, "SLURM_STEP_NUM_NODES", Some("1")));
    assert_eq!(one_host.hosts, ["127.0.0.1"]);
    let fewer_tasks = find(&but(SLURM, "SLURM_NTASKS", Some("64")));
    assert_eq!(fewer_tasks.size, 2);
}

#[test]
fn a_slurm_batch_script_is_no_launcher() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "a[1-2]")];
    assert_eq!(Placement::find(&listed(&batch)).unwrap(), None);
}

#[test]
fn the_inner_launcher_wins() {
    let torchrun_in_slurm = [SLURM, TORCHRUN].concat();
    assert_eq!(find(&torchrun_in_slurm).launcher, Launcher::Torchrun);
    assert_eq!(find(&[SLURM, OPEN_MPI_5].concat()).launcher, Launcher::OpenMpi);
    let srun_with_pmi = [SLURM, &[("PMI_RANK", "1"), ("PMI_SIZE", "2")]].concat();
    assert_eq!(find(&srun_with_pmi).launcher, Launcher::Slurm);
    let hydra_in_slurm = but(&[SLURM, HYDRA].concat(), "SLURM_PROCID", Some("0"));
    assert_eq!(find(&hydra_in_slurm).launcher, Launcher::Pmi);
}

#[test]
fn a_world_of_one_needs_no_place_to_meet() {
    let alone = [("RANK", "0"), ("WORLD_SIZE", "1")];
    assert_eq!(find(&alone).meeting, None);
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for (variables, starts) in [
        (but(BY_HAND, "WORLD_SIZE", None), "WORLD_SIZE is not set: needed because RANK is set"),
        (but(BY_HAND, "RANK", None), "RANK is not set: needed because WORLD_SIZE is set"),
        (but(BY_HAND, "MASTER_ADDR", None), "MASTER_ADDR is not set"),
        (but(BY_HAND, "MASTER_PORT", None), "MASTER_PORT is not set"),
        (but(BY_HAND, "MASTER_PORT", Some("0")), "MASTER_PORT is \"0\""),
        (but(BY_HAND, "MASTER_ADDR", Some("node1:29500")), "MASTER_ADDR is \"node1:29500\""),
        (but(BY_HAND, "MASTER_ADDR", Some("tcp://node1")), "MASTER_ADDR is \"tcp://node1\""),
        (but(BY_HAND, "RANK", Some("2")), "RANK is \"2\": WORLD_SIZE is 2"),
        (but(BY_HAND, "WORLD_SIZE", Some("0")), "WORLD_SIZE is \"0\""),
        (but(BY_HAND, "WORLD_SIZE", Some("99999999")), "WORLD_SIZE is \"99999999\""),
        (but(TORCHRUN, "LOCAL_RANK", Some("4")), "LOCAL_RANK is \"4\""),
        (but(OPEN_MPI_5, "OMPI_COMM_WORLD_SIZE", None), "OMPI_COMM_WORLD_SIZE is not set"),
        (but(OPEN_MPI_5, "OMPI_COMM_WORLD_RANK", None), "OMPI_COMM_WORLD_RANK is not set"),
        (but(HYDRA, "PMI_SIZE", Some("two")), "PMI_SIZE is \"two\""),
        (but(HYDRA, "PMI_RANK", None), "PMI_RANK is not set"),
        (but(SLURM, "SLURM_PROCID", Some("7")), "SLURM_PROCID is \"7\""),
        (but(SLURM, "SLURM_STEP_NODELIST", Some("gpu[")), "SLURM_STEP_NODELIST is \"gpu[\""),
    ] {
        let problem = problem(&variables);
        assert!(problem.starts_with(starts), "{problem}");
    }
}

#[test]
fn a_server_and_its_client_meet_by_the_port() {
    let (server, client) = (Placement::by_hand(None, 18515), Placement::by_hand(Some("n1"), 18515));
    assert_eq!((server.rank, client.rank, server.size, client.size), (0, 1, 2, 2));
    let (server, client) = (server.meeting.unwrap(), client.meeting.unwrap());
    assert!(!server.is_loopback(), "the server listens at all addresses");
    assert_eq!((server.job, server.ports), (client.job, client.ports));
    assert_ne!(Placement::by_hand(None, 1).meeting.unwrap().job, server.job);
}
