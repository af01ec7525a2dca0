//! How a queue pair without queues of its own is to spread what comes to it, as C says it.
#![expect(unsafe_code, reason = "reads the hash of an ibv_qp_init_attr_ex")]

use rdma_sys as c;

use super::hash::{FIELDS, IPV4, IPV6, KEY, Spreading, TCP, UDP};
use crate::{errno::Outcome, handle::Handle};

impl Spreading {
    /// How a pair is to spread what comes to it, if it is: `EINVAL` for a key that is too long or too short and for fields
    /// of both versions of IP or both TCP and UDP, `EOPNOTSUPP` for a function or a field that the device does not know.
    ///
    /// # Safety
    ///
    /// The table in the struct is live or null, and its key has as many bytes as it says.
    pub(crate) unsafe fn asked(attr: &c::ibv_qp_init_attr_ex) -> Outcome<Option<Self>> {
        let both = c::IBV_QP_INIT_ATTR_IND_TABLE | c::IBV_QP_INIT_ATTR_RX_HASH;
        let asked = attr.comp_mask & both;
        if asked == 0 {
            return Ok(None);
        }
        let hash = &attr.rx_hash_conf;
        let whole = asked == both
            && attr.qp_type == c::IBV_QPT_RAW_PACKET
            && !attr.rwq_ind_tbl.is_null()
            && !hash.rx_hash_key.is_null()
            && usize::from(hash.rx_hash_key_len) == KEY;
        if !whole {
            return Err(libc::EINVAL);
        }
        let fields = u32::try_from(hash.rx_hash_fields_mask).map_err(|_| libc::EOPNOTSUPP)?;
        let toeplitz = u32::from(hash.rx_hash_function) == c::IBV_RX_HASH_FUNC_TOEPLITZ;
        if !toeplitz || fields & !FIELDS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // As on ConnectX cards.
        let both = |a: u32, b: u32| fields & a != 0 && fields & b != 0;
        if both(IPV4, IPV6) || both(TCP, UDP) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the table is live, by the contract above.
        let table = unsafe { Handle::number(attr.rwq_ind_tbl) };
        // SAFETY: the key has this many bytes, which was compared.
        let key = unsafe { hash.rx_hash_key.cast::<[u8; KEY]>().read() };
        Ok(Some(Self { table, key, fields }))
    }
}
