//! Which attributes each change of state needs and takes: the tables of the InfiniBand specification, 11.2.5.2,
//! and for the extended transport of its annex A14.
//!
//! They are consulted to build changes, and to explain one that was refused; the device judges.

use rdma_sys::{
    IBV_QP_ACCESS_FLAGS as ACCESS, IBV_QP_ALT_PATH as ALTERNATE, IBV_QP_AV as ADDRESS,
    IBV_QP_CUR_STATE as CURRENT, IBV_QP_DEST_QPN as PEER, IBV_QP_EN_SQD_ASYNC_NOTIFY as NOTIFY,
    IBV_QP_MAX_DEST_RD_ATOMIC as INCOMING, IBV_QP_MAX_QP_RD_ATOMIC as OUTGOING,
    IBV_QP_MIN_RNR_TIMER as NOT_READY_TIMER, IBV_QP_PATH_MIG_STATE as MIGRATION,
    IBV_QP_PATH_MTU as MTU, IBV_QP_PKEY_INDEX as PKEY, IBV_QP_PORT as PORT, IBV_QP_QKEY as KEY,
    IBV_QP_RATE_LIMIT as RATE, IBV_QP_RETRY_CNT as RETRIES, IBV_QP_RNR_RETRY as NOT_READY_RETRIES,
    IBV_QP_RQ_PSN as FIRST_IN, IBV_QP_SQ_PSN as FIRST_OUT, IBV_QP_STATE as STATE,
    IBV_QP_TIMEOUT as TIMEOUT, IBV_QPT_RAW_PACKET as RAW, IBV_QPT_RC as RC, IBV_QPT_UC as UC,
    IBV_QPT_UD as UD, IBV_QPT_XRC_RECV as TARGET, IBV_QPT_XRC_SEND as INITIATOR,
};

use super::QueuePairState;

/// The attributes of one change, as the bits of `ibv_qp_attr_mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) required: u32,
    pub(crate) optional: u32,
}

/// The rule for a change of a transport; `None` if there is no such change, or the transport is unknown.
pub(crate) fn rule(transport: u32, from: QueuePairState, to: QueuePairState) -> Option<Rule> {
    use QueuePairState as S;
    let connected = matches!(transport, RC | UC | INITIATOR | TARGET);
    // What each end of a reliable connection has to know.
    let answers = if matches!(transport, RC | TARGET) { INCOMING | NOT_READY_TIMER } else { 0 };
    let asks = match transport {
        RC | INITIATOR => TIMEOUT | RETRIES | NOT_READY_RETRIES | OUTGOING,
        TARGET => TIMEOUT,
        _ => 0,
    };
    let timer = answers & NOT_READY_TIMER;
    let while_sending = match transport {
        UD => CURRENT | KEY,
        RAW => RATE,
        _ => CURRENT | ALTERNATE | ACCESS | MIGRATION | timer,
    };
    if !connected && transport != UD && transport != RAW {
        return None;
    }
    let (required, optional) = match (from, to) {
        (_, S::RESET | S::ERROR) => (0, 0),
        (S::RESET, S::INITIALIZED) => match transport {
            UD => (PKEY | PORT | KEY, 0),
            RAW => (PORT, 0),
            _ => (PKEY | PORT | ACCESS, 0),
        },
        (S::INITIALIZED, S::INITIALIZED) => match transport {
            UD => (0, PKEY | PORT | KEY),
            RAW => (0, PORT),
            _ => (0, PKEY | PORT | ACCESS),
        },
        (S::INITIALIZED, S::READY_TO_RECEIVE) => match transport {
            UD => (0, PKEY | KEY),
            RAW => (0, 0),
            _ => (ADDRESS | MTU | PEER | FIRST_IN | answers, ALTERNATE | ACCESS | PKEY),
        },
        (S::READY_TO_RECEIVE, S::READY_TO_SEND) => match transport {
            RAW => (0, RATE),
            _ => (FIRST_OUT | asks, while_sending),
        },
        (S::READY_TO_SEND | S::SEND_QUEUE_DRAINED, S::READY_TO_SEND) => (0, while_sending),
        (S::READY_TO_SEND, S::SEND_QUEUE_DRAINED) => (0, NOTIFY),
        (S::SEND_QUEUE_DRAINED, S::SEND_QUEUE_DRAINED) => match transport {
            UD => (0, PKEY | KEY),
            RAW => (0, 0),
            _ => {
                let port = if transport == UC { 0 } else { PORT };
                (0, ADDRESS | ALTERNATE | ACCESS | PKEY | MIGRATION | port | answers | asks)
            }
        },
        (S::SEND_QUEUE_ERROR, S::READY_TO_SEND) => match transport {
            UD => (0, CURRENT | KEY),
            UC => (0, CURRENT | ACCESS),
            _ => return None,
        },
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// Why a change cannot be, if the rules know.
pub(crate) fn objection(
    transport: u32,
    from: QueuePairState,
    to: QueuePairState,
    mask: u32,
) -> Option<String> {
    if !matches!(transport, RC | UC | UD | RAW | INITIATOR | TARGET) {
        return None;
    }
    let Some(Rule { required, optional }) = rule(transport, from, to) else {
        let remedy = if from == QueuePairState::ERROR { "; reset it first" } else { "" };
        return Some(format!("no queue pair of its transport goes from {from} to {to}{remedy}"));
    };
    let missing = required & !mask;
    let forbidden = mask & !(required | optional | STATE);
    let told = |what, bits: u32| (bits != 0).then(|| format!("{what} {}", names(bits)));
    let parts = [told("it also needs", missing), told("it does not take", forbidden)];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then_some(text)
}

/// The C names of the attributes in a mask.
fn names(mask: u32) -> String {
    const NAMES: [(u32, &str); 22] = [
        (STATE, "IBV_QP_STATE"),
        (CURRENT, "IBV_QP_CUR_STATE"),
        (NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
        (ACCESS, "IBV_QP_ACCESS_FLAGS"),
        (PKEY, "IBV_QP_PKEY_INDEX"),
        (PORT, "IBV_QP_PORT"),
        (KEY, "IBV_QP_QKEY"),
        (ADDRESS, "IBV_QP_AV"),
        (MTU, "IBV_QP_PATH_MTU"),
        (TIMEOUT, "IBV_QP_TIMEOUT"),
        (RETRIES, "IBV_QP_RETRY_CNT"),
        (NOT_READY_RETRIES, "IBV_QP_RNR_RETRY"),
        (FIRST_IN, "IBV_QP_RQ_PSN"),
        (OUTGOING, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (ALTERNATE, "IBV_QP_ALT_PATH"),
        (NOT_READY_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (FIRST_OUT, "IBV_QP_SQ_PSN"),
        (INCOMING, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (MIGRATION, "IBV_QP_PATH_MIG_STATE"),
        (rdma_sys::IBV_QP_CAP, "IBV_QP_CAP"),
        (PEER, "IBV_QP_DEST_QPN"),
        (RATE, "IBV_QP_RATE_LIMIT"),
    ];
    let known = NAMES.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| (*name).to_owned());
    let rest = mask & !NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let unknown = (rest != 0).then(|| format!("{rest:#x}"));
    known.chain(unknown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT: QueuePairState = QueuePairState::INITIALIZED;
    const RTR: QueuePairState = QueuePairState::READY_TO_RECEIVE;
    const RTS: QueuePairState = QueuePairState::READY_TO_SEND;

    #[test]
    fn each_transport_needs_what_its_end_of_a_connection_needs() {
        let required = |transport, from, to| rule(transport, from, to).unwrap().required;
        let path = ADDRESS | MTU | PEER | FIRST_IN;
        assert_eq!(required(UC, INIT, RTR), path);
        assert_eq!(required(INITIATOR, INIT, RTR), path);
        assert_eq!(required(RC, INIT, RTR), path | INCOMING | NOT_READY_TIMER);
        assert_eq!(required(TARGET, INIT, RTR), path | INCOMING | NOT_READY_TIMER);
        assert_eq!(required(UD, INIT, RTR), 0);
        assert_eq!(required(UC, RTR, RTS), FIRST_OUT);
        assert_eq!(required(TARGET, RTR, RTS), FIRST_OUT | TIMEOUT);
        let asks = FIRST_OUT | TIMEOUT | RETRIES | NOT_READY_RETRIES | OUTGOING;
        assert_eq!(required(RC, RTR, RTS), asks);
        assert_eq!(required(INITIATOR, RTR, RTS), asks);
    }

    #[test]
    fn an_objection_names_what_is_missing_and_what_is_too_much() {
        let text = objection(RC, INIT, RTR, STATE | ADDRESS | MTU | PEER | FIRST_IN | KEY).unwrap();
        assert_eq!(
            text,
            "it also needs IBV_QP_MIN_RNR_TIMER, IBV_QP_MAX_DEST_RD_ATOMIC; it does not take \
             IBV_QP_QKEY"
        );
    }

    #[test]
    fn a_change_that_does_not_exist_is_named() {
        let text = objection(RC, QueuePairState::RESET, RTS, STATE).unwrap();
        assert!(text.contains("from reset to ready to send"), "{text}");
        assert_eq!(objection(RC, RTS, QueuePairState::ERROR, STATE), None);
    }

    #[test]
    fn nothing_is_claimed_about_transports_that_the_tables_do_not_know() {
        assert_eq!(objection(rdma_sys::IBV_QPT_DRIVER, INIT, RTR, STATE), None);
    }

    #[test]
    fn bits_of_a_newer_library_show_as_numbers() {
        assert_eq!(names(1 << 30 | KEY), "IBV_QP_QKEY, 0x40000000");
    }
}
