//! Tries a launcher: meets the other ranks, then does the steps that its arguments name.
//!
//! ```console
//! $ mpirun -n 2 try-ranks
//! $ torchrun --no-python --nproc-per-node 2 try-ranks exchange barrier
//! $ try-ranks barrier 1:die barrier        # what does rank 0 say when rank 1 dies?
//! ```
//! Each step is a word, or `RANK:word` for one rank alone:
//!
//! | step | does |
//! |---|---|
//! | `exchange` | gives a pattern to every rank and checks theirs |
//! | `broadcast` | the same from rank 0 to all |
//! | `barrier` | waits for all |
//! | `wait` | waits for something that never comes, looking after the others |
//! | `fail`, `panic` | returns an error, panics |
//! | `leave` | returns, well |
//! | `die` | ends the process without a word to the others |
//!
//! Without arguments: `exchange broadcast barrier`. Without a launcher it starts two ranks itself.

use std::{
    env,
    process::{self, ExitCode},
};

use example_support::{
    AnyError, Error, Launcher, World, chain, check_pattern, launch, pattern, report,
};

const LENGTH: usize = 10_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut steps: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if steps.is_empty() {
        steps = vec!["exchange", "broadcast", "barrier"];
    }
    match World::from_environment() {
        Ok(None) => report(launch(2, |world| act(world, &steps))),
        Ok(Some(world)) => match act(&world, &steps) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                world.give_up(&chain(error.as_ref()));
                report(Err(Error::RankFailed { rank: world.rank(), source: error }))
            }
        },
        Err(error) => report(Err(error)),
    }
}

fn act(world: &World, steps: &[&str]) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    world.say(format_args!(
        "rank {rank} of {size}, local rank {}, started as {}",
        world.local_rank(),
        world.launcher()
    ));
    for &step in steps {
        let (whose, word) = step
            .split_once(':')
            .map_or((None, step), |(rank, word)| (Some(rank.parse::<usize>().ok()), word));
        if whose.is_some_and(|whose| whose != Some(rank)) {
            continue;
        }
        match word {
            "exchange" => exchange(world)?,
            "broadcast" => check_pattern(0, &world.broadcast(0, &pattern_of(rank))?)?,
            "barrier" => world.barrier()?,
            "wait" => world.wait_for("thing that never comes", || Ok::<_, Error>(None))?,
            "fail" => return Err("told to fail".into()),
            "panic" => panics(),
            "leave" => return Ok(()),
            "die" if world.launcher() == Launcher::Threads => {
                return Err("die needs ranks that are processes".into());
            }
            "die" => process::exit(9),
            other => return Err(format!("there is no step {other:?}").into()),
        }
        world.say(format_args!("{word}: done"));
    }
    Ok(())
}

#[expect(clippy::panic, reason = "the step shows what becomes of a panic")]
fn panics() {
    panic!("told to panic")
}

fn exchange(world: &World) -> Result<(), AnyError> {
    for (rank, bytes) in world.exchange(&pattern_of(world.rank()))?.iter().enumerate() {
        if bytes.len() != LENGTH {
            return Err(format!("rank {rank} sent {} bytes, not {LENGTH}", bytes.len()).into());
        }
        check_pattern(u64::try_from(rank)?, bytes)?;
    }
    Ok(())
}

fn pattern_of(rank: usize) -> Vec<u8> {
    pattern(u64::try_from(rank).unwrap_or(u64::MAX), LENGTH)
}
