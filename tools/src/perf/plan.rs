//! What will be measured: the command line with its gaps filled, checked as far as no device is needed.

use std::{error::Error, fmt, time::Duration};

use ibverbs::{Mtu, Posting};

use super::options::{Atomic, BackEnd, Metric, Options, Transport, Verb};

/// Above this size perftest reports each request, and so do we.
const MODERATED: u64 = 8 << 10;
/// The longest message of a sweep.
const SWEEP_END: u32 = 23;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    WriteWithImmediate,
    Read,
    Send,
    FetchAndAdd,
    CompareAndSwap,
}

/// What will be measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) verb: Verb,
    pub(crate) atomic: Atomic,
    pub(crate) transport: Transport,
    pub(crate) metrics: Vec<Metric>,
    /// As asked for; a sweep is cut to what the device can.
    pub(crate) sizes: Vec<u64>,
    /// Whether `sizes` may be cut.
    pub(crate) sweep: bool,
    pub(crate) iterations: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) warm_up: Option<u64>,
    pub(crate) bidirectional: bool,
    pub(crate) lanes: u32,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    pub(crate) post_list: u32,
    pub(crate) cq_mod: Option<u32>,
    /// `None` for as many as latency likes and the device has.
    pub(crate) inline: Option<u32>,
    pub(crate) outstanding: Option<u8>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) qp_timeout: u8,
    pub(crate) posting: Option<Posting>,
    pub(crate) gpu: Option<usize>,
    /// Whether waiting sleeps.
    pub(crate) events: bool,
    pub(crate) verify: bool,
}

/// Options that do not go together, and what to do.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for Mistake {}

impl Plan {
    pub(crate) fn new(options: &Options) -> Result<Self, Mistake> {
        let metrics = match options.metric {
            Metric::Both => vec![Metric::Bandwidth, Metric::Latency],
            one => vec![one],
        };
        let posting = match (options.use_old_post_send, options.back_end) {
            (true, _) | (_, BackEnd::PostSend) => Some(Posting::Classic),
            (_, BackEnd::Wr) => Some(Posting::Extended),
            (_, BackEnd::Auto) => None,
        };
        let mut plan = Self {
            verb: options.verb,
            atomic: options.atomic,
            transport: options.transport,
            metrics,
            sizes: options.size.clone(),
            sweep: options.all,
            iterations: options.iters,
            duration: None,
            warm_up: options.warm_up,
            bidirectional: options.bidirectional,
            lanes: options.queue_pairs,
            tx_depth: options.tx_depth.unwrap_or(128),
            rx_depth: options.rx_depth.unwrap_or(512),
            post_list: options.post_list,
            cq_mod: options.cq_mod,
            inline: options.inline,
            outstanding: options.outs,
            mtu: options.mtu.map(mtu).transpose()?,
            service_level: options.sl,
            traffic_class: options.tos,
            qp_timeout: options.qp_timeout,
            posting,
            gpu: options.use_cuda,
            events: options.events,
            verify: options.verify,
        };
        if let Some(seconds) = options.duration {
            let fits = seconds.is_finite() && (0.01..=86_400.0).contains(&seconds);
            check(fits, || "-D takes 0.01 to 86400 seconds".into())?;
            plan.duration = Some(Duration::from_secs_f64(seconds));
        }
        plan.choose_sizes();
        plan.check_transport()?;
        plan.check_numbers(options)?;
        Ok(plan)
    }

    pub(crate) fn measures(&self, metric: Metric) -> bool {
        self.metrics.contains(&metric)
    }

    fn choose_sizes(&mut self) {
        if self.sweep {
            let powers = if self.verb == Verb::Atomic { 3..=3 } else { 1..=SWEEP_END };
            self.sizes = powers.map(|power| 1 << power).collect();
        } else if self.sizes.is_empty() {
            let usual = match (self.verb, self.transport) {
                (Verb::Atomic, _) => 8,
                _ if !self.measures(Metric::Bandwidth) => 2,
                (Verb::Send, Transport::Ud | Transport::Srd) => 1024,
                _ => 65_536,
            };
            self.sizes = vec![usual];
        }
    }

    fn check_transport(&self) -> Result<(), Mistake> {
        let Self { verb, transport, .. } = self;
        let fits = match transport {
            Transport::Rc => true,
            Transport::Uc => matches!(verb, Verb::Write | Verb::Send),
            Transport::Ud => matches!(verb, Verb::Send),
            Transport::Srd => !matches!(verb, Verb::Atomic),
        };
        check(fits, || {
            let can = match transport {
                Transport::Ud => "UD can only send",
                Transport::Srd => "SRD has no atomics",
                Transport::Rc | Transport::Uc => "UC can only write and send",
            };
            format!("{can}: use -c RC")
        })?;
        if *transport == Transport::Srd {
            check(self.posting != Some(Posting::Classic), || {
                "SRD posts through ibv_wr_* only: leave --use_old_post_send out".into()
            })?;
            check(self.cq_mod.is_none_or(|every| every == 1), || {
                "EFA reports every request: leave -Q out, or give -Q 1".into()
            })?;
        }
        if *verb == Verb::Atomic {
            check(self.sizes == [8], || {
                "atomics work on words of 8 bytes: leave -s out, or give -s 8".into()
            })?;
            check(self.inline.is_none_or(|inline| inline == 0), || {
                "the result of an atomic cannot be inline: leave -I out".into()
            })?;
        }
        let inline = self.inline.is_some_and(|inline| inline > 0);
        check(!(inline && *verb == Verb::Read), || {
            "what is read cannot be inline: leave -I out".into()
        })?;
        check(!(inline && self.gpu.is_some()), || {
            "memory of a GPU cannot be copied into requests: leave -I out".into()
        })
    }

    fn check_numbers(&self, options: &Options) -> Result<(), Mistake> {
        let only_bandwidth = self.metrics == [Metric::Bandwidth];
        for (given, flag) in [
            (self.lanes != 1, "-q"),
            (self.bidirectional, "-b"),
            (self.post_list != 1, "-l"),
            (self.cq_mod.is_some(), "-Q"),
            (options.tx_depth.is_some(), "-t"),
        ] {
            check(only_bandwidth || !given, || {
                format!(
                    "{flag} is for bandwidth; latency has one request of one queue pair at a time: \
                     measure bw, or leave {flag} out"
                )
            })?;
        }
        check((1..=4096).contains(&self.lanes), || "-q takes 1 to 4096 queue pairs".into())?;
        check((1..=1 << 20).contains(&self.tx_depth), || "-t takes 1 to 1048576".into())?;
        check((2..=1 << 20).contains(&self.rx_depth), || "-r takes 2 to 1048576".into())?;
        check(self.iterations != Some(0), || "-n takes at least 1".into())?;
        check((1..=self.tx_depth).contains(&self.post_list), || {
            let depth = self.tx_depth;
            format!("-l takes 1 to {depth}, the depth of the send queue: raise -t, or lower -l")
        })?;
        // Who sends over another transport does not wait for room.
        let waits = self.verb == Verb::Send && self.transport == Transport::Rc;
        check(!waits || self.post_list <= self.rx_depth, || {
            let depth = self.rx_depth;
            format!("-l takes 1 to {depth}, the depth of the receive queue: raise -r, or lower -l")
        })?;
        check(self.cq_mod.is_none_or(|every| (1..=self.tx_depth).contains(&every)), || {
            let depth = self.tx_depth;
            format!(
                "-Q takes 1 to {depth}, the depth of the send queue, which would fill up with requests that \
                 never report: raise -t, or lower -Q"
            )
        })?;
        check(self.outstanding != Some(0), || "-o takes at least 1".into())?;
        check(self.service_level <= 15, || "-S takes 0 to 15".into())?;
        check(self.qp_timeout <= 31, || "-u takes 0 to 31".into())?;
        for size in &self.sizes {
            check((1..=1 << 30).contains(size), || "-s takes 1 byte to 1 GiB".into())?;
        }
        Ok(())
    }

    /// What a request does when a metric is taken. `polls_memory` says whether a writer's peer can see the last byte come.
    pub(crate) fn operation(&self, metric: Metric, polls_memory: bool) -> Operation {
        match (self.verb, self.atomic) {
            (Verb::Write, _) if metric == Metric::Latency && !polls_memory => {
                Operation::WriteWithImmediate
            }
            (Verb::Write, _) => Operation::Write,
            (Verb::Read, _) => Operation::Read,
            (Verb::Send, _) => Operation::Send,
            (Verb::Atomic, Atomic::FetchAndAdd) => Operation::FetchAndAdd,
            (Verb::Atomic, Atomic::CompareAndSwap) => Operation::CompareAndSwap,
        }
    }

    /// How many requests there are from one that reports to the next: a multiple of those behind one doorbell.
    pub(crate) fn signal_step(&self, size: u64) -> u32 {
        if self.transport == Transport::Srd {
            return 1;
        }
        let usual = if size > MODERATED { 1 } else { 100 };
        let every = self.cq_mod.unwrap_or(usual).min(self.tx_depth);
        let list = self.post_list;
        // Not more than fit, so that the send queue never fills up with silent ones.
        (every.div_ceil(list) * list).min(self.tx_depth / list * list)
    }

    /// How many messages a receiver takes before it makes room again, and before it tells so with credits.
    ///
    /// Both may be one short of that at the same time. What the sender does not know of then must leave it room for a
    /// list, since it waits for a whole one.
    pub(crate) fn room_step(&self, credits: bool) -> u32 {
        let most = self.rx_depth / 2;
        if !credits {
            return most;
        }
        most.min(self.rx_depth.saturating_sub(self.post_list) / 2 + 1)
    }

    /// How many messages of each queue pair are measured, if no time is given.
    pub(crate) fn iterations(&self, metric: Metric) -> u64 {
        let usual = match (metric, self.verb) {
            (Metric::Bandwidth, Verb::Write) => 5000,
            _ => 1000,
        };
        self.iterations.unwrap_or(usual)
    }

    pub(crate) fn warm_up(&self, iterations: u64) -> u64 {
        self.warm_up.unwrap_or_else(|| (iterations / 10).min(100))
    }

    /// What both ranks must agree on, by the names of the flags.
    pub(crate) fn agreement(&self) -> Vec<(&'static str, String)> {
        let Self { verb, atomic, transport, metrics, sizes, iterations, duration, .. } = self;
        let Self { warm_up, bidirectional, lanes, tx_depth, rx_depth, post_list, cq_mod, .. } =
            self;
        vec![
            ("the verb", format!("{verb:?}")),
            ("the metric", format!("{metrics:?}")),
            ("-c", format!("{transport:?}")),
            ("-A", format!("{atomic:?}")),
            ("-s or -a", format!("{sizes:?}")),
            ("-n", format!("{iterations:?}")),
            ("-D", format!("{duration:?}")),
            ("--warm-up", format!("{warm_up:?}")),
            ("-b", bidirectional.to_string()),
            ("-q", lanes.to_string()),
            ("-t", tx_depth.to_string()),
            ("-r", rx_depth.to_string()),
            ("-l", post_list.to_string()),
            ("-Q", format!("{cq_mod:?}")),
            ("-e", self.events.to_string()),
            ("--verify", self.verify.to_string()),
            ("--use_cuda", self.gpu.is_some().to_string()),
        ]
    }
}

fn check(fits: bool, mistake: impl FnOnce() -> String) -> Result<(), Mistake> {
    if fits { Ok(()) } else { Err(Mistake(mistake())) }
}

fn mtu(bytes: usize) -> Result<Mtu, Mistake> {
    let mut codes = (1..=5).filter_map(|code| Mtu::from_code(code).ok());
    let fits = codes.find(|mtu| mtu.bytes() == bytes);
    fits.ok_or_else(|| Mistake(format!("-m {bytes} is no MTU: give 256, 512, 1024, 2048 or 4096")))
}
#[cfg(test)]
mod tests;
