use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn parse(line: &str) -> Options {
    Line::try_parse_from(["perf"].into_iter().chain(line.split_whitespace())).unwrap().options
}

fn plan(line: &str) -> Plan {
    Plan::new(&parse(line)).unwrap()
}

fn mistake(line: &str) -> String {
    Plan::new(&parse(line)).unwrap_err().to_string()
}

#[test]
fn what_is_not_said_is_as_in_perftest() {
    let write = plan("write bw");
    assert_eq!((write.tx_depth, write.rx_depth, write.lanes, write.post_list), (128, 512, 1, 1));
    assert_eq!(
        (write.sizes.as_slice(), write.iterations(Metric::Bandwidth)),
        (&[65_536][..], 5000)
    );
    assert_eq!((write.signal_step(8), write.signal_step(65_536)), (100, 1));
    assert_eq!(plan("read lat").sizes, [2]);
    assert_eq!(plan("atomic lat").sizes, [8]);
    let sweep = plan("send bw -a").sizes;
    assert_eq!((sweep.first(), sweep.last(), sweep.len()), (Some(&2), Some(&(8 << 20)), 23));
}

#[test]
fn flags_may_be_written_as_perftest_writes_them() {
    let line = "write bw -d mlx5_0 -i 1 -x 3 -s 4k -n 10 -p 4711 -m 4096 -c RC -q 2 -t 64 -r 32 -l 4 -I 16 -Q 8 \
                -b -o 4 -S 3 -T 106 -u 18 --use_old_post_send node1";
    let options = parse(line);
    assert_eq!(options.host.as_deref(), Some("node1"));
    let plan = Plan::new(&options).unwrap();
    assert_eq!((plan.sizes.as_slice(), plan.lanes, plan.bidirectional), (&[4096][..], 2, true));
    assert_eq!((plan.mtu.map(Mtu::bytes), plan.posting), (Some(4096), Some(Posting::Classic)));
    for line in ["send lat -c ud", "write bw -c SRD -D 0.5", "atomic bw -A CMP_AND_SWAP -a"] {
        plan_of_some_size(line);
    }
}

fn plan_of_some_size(line: &str) {
    assert!(!plan(line).sizes.is_empty(), "{line}");
}

#[test]
fn a_send_queue_never_fills_with_silent_requests() {
    for (line, step) in [
        ("write bw -s 8 -t 10", 10),
        ("write bw -s 8 -l 16", 112),
        ("write bw -s 8 -l 3 -t 10", 9),
        ("write bw -s 8 -l 16 -Q 1", 16),
        ("write bw -s 8 -l 128", 128),
        ("write bw -s 8 -c SRD -l 4", 1),
    ] {
        let plan = plan(line);
        let found = plan.signal_step(8);
        assert_eq!(found, step, "{line}");
        assert!(
            found <= plan.tx_depth && (found.is_multiple_of(plan.post_list) || found == 1),
            "{line}"
        );
    }
}

#[test]
fn options_that_do_not_fit_are_refused_with_a_remedy() {
    for (line, words) in [
        ("read bw -c UD", "UD can only send: use -c RC"),
        ("write lat -c UD", "use -c RC"),
        ("read bw -c UC", "UC can only write and send: use -c RC"),
        ("atomic bw -c SRD", "SRD has no atomics: use -c RC"),
        ("atomic bw -s 16", "leave -s out, or give -s 8"),
        ("atomic bw -I 8", "leave -I out"),
        ("read lat -I 8", "leave -I out"),
        ("send bw -c SRD --use_old_post_send", "leave --use_old_post_send out"),
        ("send bw -c SRD -Q 4", "give -Q 1"),
        ("write lat -q 2", "measure bw, or leave -q out"),
        ("write both -b", "leave -b out"),
        ("read lat -l 2", "leave -l out"),
        ("send lat -t 4", "leave -t out"),
        ("write bw -q 0", "-q takes 1 to 4096"),
        ("write bw -t 0", "-t takes 1"),
        ("send bw -r 1", "-r takes 2"),
        ("write bw -l 200", "raise -t, or lower -l"),
        ("send bw -r 8 -l 9", "raise -r, or lower -l"),
        ("write bw -Q 200", "raise -t, or lower -Q"),
        ("write bw -n 0", "-n takes at least 1"),
        ("write bw -s 0", "-s takes 1 byte"),
        ("write bw -D 0", "-D takes 0.01"),
        ("write bw -m 1500", "give 256, 512, 1024, 2048 or 4096"),
        ("write bw -S 16", "-S takes 0 to 15"),
        ("write bw -u 32", "-u takes 0 to 31"),
        ("read bw -o 0", "-o takes at least 1"),
        ("write bw --use_cuda 0 -I 8", "leave -I out"),
    ] {
        let text = mistake(line);
        assert!(text.contains(words), "{line}: {text}");
    }
}

#[test]
fn a_receiver_tells_of_room_before_its_sender_has_too_little_for_a_list() {
    for (line, step) in [
        ("send bw", 256),
        ("send bw -r 2", 1),
        ("send bw -r 8 -l 5", 2),
        ("send bw -r 8 -l 7", 1),
        ("send bw -r 64 -l 64", 1),
    ] {
        let plan = plan(line);
        assert_eq!(plan.room_step(true), step, "{line}");
        let untold = 2 * (step - 1);
        assert!(plan.rx_depth - untold >= plan.post_list, "{line}");
    }
    assert_eq!(plan("send bw -c UD -r 8 -l 9").room_step(false), 4);
}

#[test]
fn what_cannot_be_meant_is_no_command_line() {
    for line in ["write", "write speed", "write bw -a -s 8", "write bw -n 1 -D 1", "write bw -s x"]
    {
        let words = ["perf"].into_iter().chain(line.split_whitespace());
        assert!(Line::try_parse_from(words).is_err(), "{line}");
    }
}

#[test]
fn a_write_tells_by_its_last_byte_only_where_the_processor_can_see_it_come_last() {
    let plan = plan("write both");
    assert_eq!(plan.operation(Metric::Latency, true), Operation::Write);
    assert_eq!(plan.operation(Metric::Latency, false), Operation::WriteWithImmediate);
    assert_eq!(plan.operation(Metric::Bandwidth, false), Operation::Write);
}
