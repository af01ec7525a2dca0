//! Which attributes each change of state needs and allows: the tables of the InfiniBand
//! specification (11.2.5.2), as the kernel checks them.

use rdma_sys as c;

/// The attributes of one change of state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) required: u32,
    pub(crate) optional: u32,
}

impl Rule {
    const NONE: Self = Self { required: 0, optional: 0 };

    /// Whether a mask, which may name the state as well, obeys.
    pub(crate) fn allows(self, mask: u32) -> bool {
        let named = mask & !c::IBV_QP_STATE;
        named & self.required == self.required && named & !(self.required | self.optional) == 0
    }
}

const RELIABLE: [c::ibv_qp_type; 3] = [c::IBV_QPT_RC, c::IBV_QPT_XRC_SEND, c::IBV_QPT_XRC_RECV];

/// The rule for a change, `None` if there is no such change.
pub(crate) fn rule(
    kind: c::ibv_qp_type,
    from: c::ibv_qp_state,
    to: c::ibv_qp_state,
) -> Option<Rule> {
    if kind == c::IBV_QPT_RAW_PACKET {
        return raw_packets(from, to);
    }
    let datagram = kind == c::IBV_QPT_UD || kind == c::IBV_QPT_DRIVER;
    let reliable = RELIABLE.contains(&kind);
    // Which of the kinds has the side that sends, and the side that answers.
    let requests = kind == c::IBV_QPT_RC || kind == c::IBV_QPT_XRC_SEND;
    let answers = kind == c::IBV_QPT_RC || kind == c::IBV_QPT_XRC_RECV;
    let only = |set: bool, mask: u32| if set { mask } else { 0 };

    let identity = c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT;
    let connected = c::IBV_QP_ACCESS_FLAGS | c::IBV_QP_ALT_PATH | c::IBV_QP_PATH_MIG_STATE;
    let running = Rule {
        required: 0,
        optional: c::IBV_QP_CUR_STATE
            | if datagram {
                c::IBV_QP_QKEY
            } else {
                connected | only(answers, c::IBV_QP_MIN_RNR_TIMER)
            },
    };
    match (from, to) {
        (_, c::IBV_QPS_RESET | c::IBV_QPS_ERR) => Some(Rule::NONE),
        (c::IBV_QPS_RESET, c::IBV_QPS_INIT) => Some(Rule {
            required: identity | if datagram { c::IBV_QP_QKEY } else { c::IBV_QP_ACCESS_FLAGS },
            optional: 0,
        }),
        (c::IBV_QPS_INIT, c::IBV_QPS_INIT) => Some(Rule {
            required: 0,
            optional: identity | if datagram { c::IBV_QP_QKEY } else { c::IBV_QP_ACCESS_FLAGS },
        }),
        (c::IBV_QPS_INIT, c::IBV_QPS_RTR) if datagram => {
            Some(Rule { required: 0, optional: c::IBV_QP_PKEY_INDEX | c::IBV_QP_QKEY })
        }
        (c::IBV_QPS_INIT, c::IBV_QPS_RTR) => Some(Rule {
            required: c::IBV_QP_AV
                | c::IBV_QP_PATH_MTU
                | c::IBV_QP_DEST_QPN
                | c::IBV_QP_RQ_PSN
                | only(answers, c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER),
            optional: c::IBV_QP_ALT_PATH | c::IBV_QP_ACCESS_FLAGS | c::IBV_QP_PKEY_INDEX,
        }),
        (c::IBV_QPS_RTR, c::IBV_QPS_RTS) => Some(Rule {
            required: c::IBV_QP_SQ_PSN
                | only(reliable, c::IBV_QP_TIMEOUT)
                | only(
                    requests,
                    c::IBV_QP_RETRY_CNT | c::IBV_QP_RNR_RETRY | c::IBV_QP_MAX_QP_RD_ATOMIC,
                ),
            optional: running.optional | only(kind == c::IBV_QPT_DRIVER, c::IBV_QP_RNR_RETRY),
        }),
        (c::IBV_QPS_RTS, c::IBV_QPS_RTS) | (c::IBV_QPS_SQD, c::IBV_QPS_RTS) => Some(running),
        (c::IBV_QPS_SQE, c::IBV_QPS_RTS) if !reliable => Some(running),
        (c::IBV_QPS_RTS, c::IBV_QPS_SQD) => {
            Some(Rule { required: 0, optional: c::IBV_QP_EN_SQD_ASYNC_NOTIFY })
        }
        (c::IBV_QPS_SQD, c::IBV_QPS_SQD) if datagram => {
            Some(Rule { required: 0, optional: c::IBV_QP_PKEY_INDEX | c::IBV_QP_QKEY })
        }
        (c::IBV_QPS_SQD, c::IBV_QPS_SQD) => Some(Rule {
            required: 0,
            optional: c::IBV_QP_AV
                | connected
                | c::IBV_QP_PKEY_INDEX
                | only(reliable, c::IBV_QP_PORT | c::IBV_QP_TIMEOUT)
                | only(
                    requests,
                    c::IBV_QP_RETRY_CNT | c::IBV_QP_RNR_RETRY | c::IBV_QP_MAX_QP_RD_ATOMIC,
                )
                | only(answers, c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER),
        }),
        _ => None,
    }
}

/// The rules for raw packets, which have no peer: as the kernel has them.
fn raw_packets(from: c::ibv_qp_state, to: c::ibv_qp_state) -> Option<Rule> {
    match (from, to) {
        (_, c::IBV_QPS_RESET | c::IBV_QPS_ERR) | (c::IBV_QPS_INIT, c::IBV_QPS_RTR) => {
            Some(Rule::NONE)
        }
        (c::IBV_QPS_RESET, c::IBV_QPS_INIT) => Some(Rule { required: c::IBV_QP_PORT, optional: 0 }),
        (c::IBV_QPS_INIT, c::IBV_QPS_INIT) => Some(Rule { required: 0, optional: c::IBV_QP_PORT }),
        (c::IBV_QPS_RTR | c::IBV_QPS_RTS, c::IBV_QPS_RTS) => {
            Some(Rule { required: 0, optional: c::IBV_QP_RATE_LIMIT })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_to_receive_needs_every_attribute_of_the_path() {
        let rule = rule(c::IBV_QPT_RC, c::IBV_QPS_INIT, c::IBV_QPS_RTR).unwrap();
        let whole = c::IBV_QP_STATE | rule.required;
        assert!(rule.allows(whole));
        assert!(rule.allows(whole | c::IBV_QP_ACCESS_FLAGS));
        assert!(!rule.allows(whole & !c::IBV_QP_MIN_RNR_TIMER));
        assert!(!rule.allows(whole | c::IBV_QP_TIMEOUT));
    }

    #[test]
    fn there_is_no_way_past_a_state() {
        assert_eq!(rule(c::IBV_QPT_RC, c::IBV_QPS_RESET, c::IBV_QPS_RTR), None);
        assert_eq!(rule(c::IBV_QPT_RC, c::IBV_QPS_INIT, c::IBV_QPS_RTS), None);
        assert_eq!(rule(c::IBV_QPT_RC, c::IBV_QPS_ERR, c::IBV_QPS_RTS), None);
        assert_eq!(rule(c::IBV_QPT_RC, c::IBV_QPS_SQE, c::IBV_QPS_RTS), None);
        assert!(rule(c::IBV_QPT_UD, c::IBV_QPS_SQE, c::IBV_QPS_RTS).is_some());
    }
}
