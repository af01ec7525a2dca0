//! What the command line says.

use clap::{Args, ValueEnum};

/// What is done to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verb {
    /// Bytes into the other side's memory, which is not told.
    Write,
    /// Bytes out of the other side's memory.
    Read,
    /// Messages into the other side's receives.
    Send,
    /// Fetch-and-add or compare-and-swap on a word of the other side.
    Atomic,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Bandwidth and rate of messages, with many requests outstanding.
    #[value(name = "bw", alias = "bandwidth")]
    Bandwidth,
    /// Latency, one request at a time.
    #[value(name = "lat", alias = "latency")]
    Latency,
    /// Bandwidth, then latency.
    Both,
}

/// The kind of queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Reliable connected.
    #[value(name = "RC")]
    Rc,
    /// Unreliable connected: write and send.
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagram: send, up to the MTU.
    #[value(name = "UD")]
    Ud,
    /// Scalable reliable datagram of EFA devices: write, read and send.
    #[value(name = "SRD")]
    Srd,
}

/// What `atomic` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Atomic {
    /// Adds to the word.
    #[value(name = "FETCH_AND_ADD", alias = "fetch-and-add", alias = "FETCH_ADD")]
    FetchAndAdd,
    /// Replaces the word if it has a certain value.
    #[value(name = "CMP_AND_SWAP", alias = "compare-and-swap", alias = "CMP_SWAP")]
    CompareAndSwap,
}

/// Which functions of the provider requests go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEnd {
    /// `ibv_wr_*` where the provider has them, else `ibv_post_send`.
    Auto,
    /// `ibv_wr_*`.
    Wr,
    /// `ibv_post_send`.
    PostSend,
}

/// Without HOST it is the server, or, where no RDMA device is, both sides on a device in software. A launcher's ranks
/// need no HOST. Flags that perftest has are named as there; both sides get the same ones.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// What is done
    #[arg(ignore_case = true)]
    pub(crate) verb: Verb,
    /// What is measured
    #[arg(ignore_case = true)]
    pub(crate) metric: Metric,
    /// The server to connect to; none to be it
    pub(crate) host: Option<String>,

    /// The device; `software` for one inside this process [default: as `RDMA_DEVICE` says, else the first active one]
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The port of the device [default: the first active one]
    #[arg(short = 'i', long = "ib-port", value_name = "PORT")]
    pub(crate) ib_port: Option<u8>,
    /// The entry of the port's GID table [default: one that others can reach]
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
    /// The TCP port on which server and client meet
    #[arg(short = 'p', long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// How many seconds the server waits for its client
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub(crate) wait: u64,
    /// Both sides are threads of this process, on a real device too
    #[arg(long, conflicts_with = "host")]
    pub(crate) loopback: bool,

    /// The kind of queue pair
    #[arg(short = 'c', long = "connection", default_value = "RC", ignore_case = true)]
    pub(crate) transport: Transport,
    /// Bytes of a message, also with k, M or G for powers of 1024; several with commas [default: 65536, for latency 2, for
    /// atomics 8]
    #[arg(short = 's', long, value_delimiter = ',', value_parser = size, value_name = "BYTES")]
    pub(crate) size: Vec<u64>,
    /// Every power of two from 2 bytes to 8 MiB, or to what the transport can
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Messages of each queue pair [default: 5000 for the bandwidth of writes, else 1000]
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(crate) iters: Option<u64>,
    /// About how many seconds each size is measured, instead of a number of messages
    #[arg(short = 'D', long, conflicts_with = "iters", value_name = "SECONDS")]
    pub(crate) duration: Option<f64>,
    /// Messages before those that are measured [default: a tenth of them, at most 100]
    #[arg(long, value_name = "COUNT")]
    pub(crate) warm_up: Option<u64>,
    /// Bandwidth of both directions at a time
    #[arg(short = 'b', long)]
    pub(crate) bidirectional: bool,
    /// What atomics do
    #[arg(
        short = 'A',
        long = "atomic_type",
        alias = "atomic-type",
        default_value = "FETCH_AND_ADD",
        ignore_case = true
    )]
    pub(crate) atomic: Atomic,

    /// Number of queue pairs, for bandwidth
    #[arg(short = 'q', long = "qp", default_value_t = 1, value_name = "COUNT")]
    pub(crate) queue_pairs: u32,
    /// Requests outstanding in a send queue, for bandwidth [default: 128]
    #[arg(short = 't', long, value_name = "COUNT")]
    pub(crate) tx_depth: Option<u32>,
    /// Receives posted to a receive queue [default: 512]
    #[arg(short = 'r', long, value_name = "COUNT")]
    pub(crate) rx_depth: Option<u32>,
    /// Requests behind one doorbell, for bandwidth
    #[arg(
        short = 'l',
        long = "post_list",
        alias = "post-list",
        default_value_t = 1,
        value_name = "COUNT"
    )]
    pub(crate) post_list: u32,
    /// One of so many requests reports its completion, for bandwidth [default: 100, above 8 KiB and for SRD 1]
    #[arg(short = 'Q', long, value_name = "COUNT")]
    pub(crate) cq_mod: Option<u32>,
    /// Messages up to so many bytes are copied into the request [default: 0, for latency up to 220]
    #[arg(short = 'I', long = "inline_size", alias = "inline-size", value_name = "BYTES")]
    pub(crate) inline: Option<u32>,
    /// Reads and atomics that are outstanding on the wire [default: the device's limit, at most 16]
    #[arg(short = 'o', long, value_name = "COUNT")]
    pub(crate) outs: Option<u8>,
    /// Sleeps until there is an event where nothing was found, instead of polling again
    #[arg(short = 'e', long)]
    pub(crate) events: bool,
    /// MTU of the path in bytes [default: what both ports have]
    #[arg(short = 'm', long, value_name = "BYTES")]
    pub(crate) mtu: Option<usize>,
    /// Service level
    #[arg(short = 'S', long, default_value_t = 0)]
    pub(crate) sl: u8,
    /// Traffic class; for RoCE v2 its upper six bits are the DSCP
    #[arg(short = 'T', long, default_value_t = 0)]
    pub(crate) tos: u8,
    /// Time-out of a connection: 4.096 µs times two to the power of this
    #[arg(short = 'u', long, default_value_t = 14, value_name = "POWER")]
    pub(crate) qp_timeout: u8,
    /// Through which functions requests are posted
    #[arg(long, default_value = "auto")]
    pub(crate) back_end: BackEnd,
    /// The same as `--back-end post-send`
    #[arg(long = "use_old_post_send", alias = "use-old-post-send", conflicts_with = "back_end")]
    pub(crate) use_old_post_send: bool,
    /// Messages come from and go to memory of this GPU
    #[arg(long = "use_cuda", alias = "use-cuda", value_name = "GPU")]
    pub(crate) use_cuda: Option<usize>,
    /// Runs on these processors, one for each rank of this machine, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "CPU")]
    pub(crate) pin: Vec<usize>,

    /// Looks whether the bytes that arrive are those that were sent
    #[arg(long)]
    pub(crate) verify: bool,
    /// Prints the histogram of latencies
    #[arg(short = 'H', long = "report-histogram", alias = "report_histogram")]
    pub(crate) histogram: bool,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws what was measured, by message size
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<std::path::PathBuf>,
}

/// A number of bytes, with k, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match lower.char_indices().last() {
        Some((at, 'k')) => (&lower[..at], 10),
        Some((at, 'm')) => (&lower[..at], 20),
        Some((at, 'g')) => (&lower[..at], 30),
        _ => (lower, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than there can be".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_a_unit() {
        let sizes = ["8", "4k", "64KiB", "1M", "2MB", "1 G"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [8, 4 << 10, 64 << 10, 1 << 20, 2 << 20, 1 << 30]);
        for text in ["", "k", "x", "-1", "1.5k", "99999999999G"] {
            size(text).unwrap_err();
        }
    }
}
