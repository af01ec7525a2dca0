//! The connection manager.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each call is made on live objects of a test"
)]

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, SocketAddr},
    ptr, slice, thread,
};

use rdma_sys as c;
use soft_device::{GidEntry, SoftDevice, library};

use crate::support::{call, errno};

fn cm() -> &'static c::ConnectionManager {
    library().connection_manager().unwrap()
}

/// Calls a function of librdmacm.
macro_rules! cm {
    ($name:ident($($argument:expr),* $(,)?)) => {
        unsafe { cm().$name.unwrap()($($argument),*) }
    };
}

/// A socket address as C has it.
fn in_c(address: SocketAddr) -> libc::sockaddr_storage {
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let place: *mut libc::sockaddr_in = (&raw mut storage).cast();
            unsafe {
                (*place).sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap();
                (*place).sin_port = v4.port().to_be();
                (*place).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
        }
        SocketAddr::V6(v6) => {
            let place: *mut libc::sockaddr_in6 = (&raw mut storage).cast();
            unsafe {
                (*place).sin6_family = libc::sa_family_t::try_from(libc::AF_INET6).unwrap();
                (*place).sin6_port = v6.port().to_be();
                (*place).sin6_addr.s6_addr = v6.ip().octets();
            }
        }
    }
    storage
}

struct Channel(*mut c::rdma_event_channel);

impl Channel {
    fn new() -> Self {
        let channel = cm!(rdma_create_event_channel());
        assert!(!channel.is_null());
        Self(channel)
    }

    fn identifier(&self, ps: u32) -> *mut c::rdma_cm_id {
        let mut id = ptr::null_mut();
        assert_eq!(cm!(rdma_create_id(self.0, &raw mut id, ptr::null_mut(), ps)), 0);
        id
    }

    /// The next event, acknowledged: kind, identifier, status, private data, and what else it has.
    fn next(&self) -> Event {
        let mut raw = ptr::null_mut();
        assert_eq!(cm!(rdma_get_cm_event(self.0, &raw mut raw)), 0);
        let event = unsafe { *raw };
        let conn = unsafe { event.param.conn };
        let data = if conn.private_data.is_null() {
            Vec::new()
        } else {
            let length = conn.private_data_len.into();
            unsafe { slice::from_raw_parts(conn.private_data.cast::<u8>(), length) }.to_vec()
        };
        assert_eq!(cm!(rdma_ack_cm_event(raw)), 0);
        Event { kind: event.event, id: event.id, status: event.status, data, raw: event }
    }

    fn expect(&self, kind: u32) -> Event {
        let event = self.next();
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    }

    fn is_quiet(&self) -> bool {
        let mut poll =
            libc::pollfd { fd: unsafe { (*self.0).fd }, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        cm!(rdma_destroy_event_channel(self.0));
    }
}

struct Event {
    kind: u32,
    id: *mut c::rdma_cm_id,
    status: c_int,
    data: Vec<u8>,
    raw: c::rdma_cm_event,
}

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

fn listen(channel: &Channel, ps: u32, ip: IpAddr) -> (*mut c::rdma_cm_id, SocketAddr) {
    let id = channel.identifier(ps);
    let mut address = in_c(at(ip, 0));
    assert_eq!(cm!(rdma_bind_addr(id, (&raw mut address).cast())), 0, "errno {}", errno());
    assert_eq!(cm!(rdma_listen(id, 4)), 0);
    let port = u16::from_be(cm!(rdma_get_src_port(id)));
    assert_ne!(port, 0);
    (id, at(ip, port))
}

fn resolve(channel: &Channel, ps: u32, target: SocketAddr) -> *mut c::rdma_cm_id {
    let id = channel.identifier(ps);
    let mut address = in_c(target);
    let code = cm!(rdma_resolve_addr(id, ptr::null_mut(), (&raw mut address).cast(), 100));
    assert_eq!(code, 0, "errno {}", errno());
    channel.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(cm!(rdma_resolve_route(id, 100)), 0);
    channel.expect(c::RDMA_CM_EVENT_ROUTE_RESOLVED);
    id
}

fn add_pair(id: *mut c::rdma_cm_id) {
    let mut init = c::ibv_qp_init_attr {
        cap: c::ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        },
        qp_type: unsafe { (*id).qp_type },
        ..Default::default()
    };
    let code = cm!(rdma_create_qp(id, ptr::null_mut(), &raw mut init));
    assert_eq!(code, 0, "errno {}", errno());
}

fn param(data: &[u8]) -> c::rdma_conn_param {
    c::rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: u8::try_from(data.len()).unwrap(),
        responder_resources: 2,
        initiator_depth: 3,
        retry_count: 5,
        rnr_retry_count: 6,
        ..Default::default()
    }
}

/// A send of inline bytes from one identifier to a receive of another.
fn message(from: *mut c::rdma_cm_id, to: *mut c::rdma_cm_id) {
    let mut place = [0u8; 8];
    let mr = unsafe {
        let access = c_int::try_from(c::IBV_ACCESS_LOCAL_WRITE).unwrap();
        call!(ibv_reg_mr((*to).pd, place.as_mut_ptr().cast(), 8, access))
    };
    let addr = place.as_mut_ptr().expose_provenance() as u64;
    let mut segment = c::ibv_sge { addr, length: 8, lkey: unsafe { (*mr).lkey } };
    let sg_list = &raw mut segment;
    let mut receive = c::ibv_recv_wr { wr_id: 1, sg_list, num_sge: 1, ..Default::default() };
    let mut bad = ptr::null_mut();
    assert_eq!(unsafe { c::ibv_post_recv((*to).qp, &raw mut receive, &raw mut bad) }, 0);
    let addr = b"over cm!".as_ptr().expose_provenance() as u64;
    let mut segment = c::ibv_sge { addr, length: 8, lkey: 0 };
    let mut send = c::ibv_send_wr {
        opcode: c::IBV_WR_SEND,
        send_flags: c::IBV_SEND_SIGNALED | c::IBV_SEND_INLINE,
        sg_list: &raw mut segment,
        num_sge: 1,
        ..Default::default()
    };
    let mut bad = ptr::null_mut();
    assert_eq!(unsafe { c::ibv_post_send((*from).qp, &raw mut send, &raw mut bad) }, 0);
    let mut wc = c::ibv_wc::default();
    assert_eq!(unsafe { c::ibv_poll_cq((*to).recv_cq, 1, &raw mut wc) }, 1);
    assert_eq!((wc.status, &place), (0, b"over cm!"));
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
}

fn end(id: *mut c::rdma_cm_id) {
    cm!(rdma_destroy_qp(id));
    assert_eq!(cm!(rdma_destroy_id(id)), 0, "errno {}", errno());
}

#[test]
fn two_identifiers_connect_exchange_a_message_and_part() {
    let device = SoftDevice::new();
    let (server, client) = (Channel::new(), Channel::new());
    let (listener, address) = listen(&server, c::RDMA_PS_TCP, device.address(1).unwrap());
    let active = resolve(&client, c::RDMA_PS_TCP, address);
    assert_eq!(unsafe { (*active).port_num }, 1);
    assert_eq!(cm!(rdma_get_dst_port(active)), address.port().to_be());
    add_pair(active);
    let mut wanted = param(b"hello");
    assert_eq!(cm!(rdma_connect(active, &raw mut wanted)), 0);
    let request = server.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.raw.listen_id, listener);
    // Private data comes in the length of the message, padded with zeros.
    assert_eq!((&request.data[..5], request.data.len()), (b"hello".as_slice(), 56));
    let asked = unsafe { request.raw.param.conn };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (3, 2));
    let passive = request.id;
    assert_eq!(cm!(rdma_get_src_port(passive)), address.port().to_be());
    add_pair(passive);
    let mut accepted = param(b"welcome");
    assert_eq!(cm!(rdma_accept(passive, &raw mut accepted)), 0, "errno {}", errno());
    // The peer is not ready before it has fetched the answer.
    assert!(server.is_quiet());
    let established = client.expect(c::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!((&established.data[..7], established.data.len()), (b"welcome".as_slice(), 196));
    server.expect(c::RDMA_CM_EVENT_ESTABLISHED);
    message(active, passive);
    message(passive, active);

    assert_eq!(cm!(rdma_disconnect(active)), 0);
    assert_eq!(server.expect(c::RDMA_CM_EVENT_DISCONNECTED).id, passive);
    assert_eq!(client.expect(c::RDMA_CM_EVENT_DISCONNECTED).id, active);
    server.expect(c::RDMA_CM_EVENT_TIMEWAIT_EXIT);
    assert_eq!(cm!(rdma_disconnect(passive)), 0);
    for id in [active, passive, listener] {
        end(id);
    }
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_queue_pair_of_ones_own_is_connected_by_attributes() {
    let device = SoftDevice::new();
    let (server, client) = (Channel::new(), Channel::new());
    let (listener, address) = listen(&server, c::RDMA_PS_TCP, device.address(1).unwrap());
    let active = resolve(&client, c::RDMA_PS_TCP, address);
    let mut wanted = c::rdma_conn_param { qp_num: 77, ..param(b"") };
    assert_eq!(cm!(rdma_connect(active, &raw mut wanted)), 0);
    let passive = server.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST).id;
    let mut accepted = c::rdma_conn_param { qp_num: 88, ..param(b"") };
    assert_eq!(cm!(rdma_accept(passive, &raw mut accepted)), 0);
    let response = client.expect(c::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(unsafe { response.raw.param.conn.qp_num }, 88);
    let attributes = |id, qp_state| {
        let mut attr = c::ibv_qp_attr { qp_state, ..Default::default() };
        let mut mask = 0;
        assert_eq!(cm!(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask)), 0);
        (attr, mask)
    };
    let (theirs, _) = attributes(active, c::IBV_QPS_RTR);
    let (ours, _) = attributes(passive, c::IBV_QPS_RTS);
    assert_eq!((theirs.dest_qp_num, theirs.rq_psn), (88, ours.sq_psn));
    assert_eq!(attributes(passive, c::IBV_QPS_RTR).0.dest_qp_num, 77);
    assert_eq!((ours.retry_cnt, ours.rnr_retry), (5, 6));
    assert_eq!(cm!(rdma_establish(active)), 0);
    server.expect(c::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(cm!(rdma_establish(active)), -1);
    // A connected peer hears that the identifier is gone.
    end(active);
    server.expect(c::RDMA_CM_EVENT_DISCONNECTED);
    end(passive);
    end(listener);
}

#[test]
fn a_rejection_has_a_reason_and_private_data() {
    let device = SoftDevice::new();
    let (server, client) = (Channel::new(), Channel::new());
    let (listener, address) = listen(&server, c::RDMA_PS_TCP, device.address(1).unwrap());
    let active = resolve(&client, c::RDMA_PS_TCP, address);
    assert_eq!(cm!(rdma_connect(active, ptr::null_mut())), 0);
    let passive = server.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(cm!(rdma_reject(passive, b"no".as_ptr().cast(), 2)), 0);
    let rejected = client.next();
    assert_eq!((rejected.kind, rejected.status), (c::RDMA_CM_EVENT_REJECTED, 28));
    assert_eq!((&rejected.data[..2], rejected.data.len()), (b"no".as_slice(), 148));

    // A request that was not fetched is rejected when its listener goes.
    let other = resolve(&client, c::RDMA_PS_TCP, address);
    assert_eq!(cm!(rdma_connect(other, ptr::null_mut())), 0);
    for id in [active, passive, listener] {
        end(id);
    }
    assert_eq!(client.next().status, 28);
    assert!(server.is_quiet());
    let nobody = resolve(&client, c::RDMA_PS_TCP, address);
    assert_eq!(cm!(rdma_connect(nobody, ptr::null_mut())), 0);
    let rejected = client.next();
    assert_eq!((rejected.kind, rejected.status), (c::RDMA_CM_EVENT_REJECTED, 8));
    end(other);
    end(nobody);
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn addresses_that_are_taken_or_nobodys_are_refused() {
    let device = SoftDevice::new();
    let channel = Channel::new();
    let ip = device.address(1).unwrap();
    let (listener, address) = listen(&channel, c::RDMA_PS_TCP, ip);
    let second = channel.identifier(c::RDMA_PS_TCP);
    let bind = |address: SocketAddr| {
        let mut address = in_c(address);
        let code = cm!(rdma_bind_addr(second, (&raw mut address).cast()));
        (code, if code == 0 { 0 } else { errno() })
    };
    assert_eq!(bind(address), (-1, libc::EADDRINUSE));
    assert_eq!(bind(at([192, 0, 2, 1].into(), 5)), (-1, libc::EADDRNOTAVAIL));
    assert_eq!(bind(at(ip, 7)), (0, 0));
    assert_eq!(cm!(rdma_resolve_route(second, 1)), -1);
    let lost = channel.identifier(c::RDMA_PS_TCP);
    let mut nowhere = in_c(at([192, 0, 2, 1].into(), 5));
    let code = cm!(rdma_resolve_addr(lost, ptr::null_mut(), (&raw mut nowhere).cast(), 1));
    assert_eq!(code, 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (c::RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH));
    for id in [listener, second, lost] {
        end(id);
    }
}

#[test]
fn an_event_that_is_not_acknowledged_keeps_its_identifier() {
    let device = SoftDevice::new();
    let channel = Channel::new();
    let id = channel.identifier(c::RDMA_PS_TCP);
    let mut address = in_c(at(device.address(1).unwrap(), 9));
    let code = cm!(rdma_resolve_addr(id, ptr::null_mut(), (&raw mut address).cast(), 1));
    assert_eq!(code, 0);
    let mut event = ptr::null_mut();
    assert_eq!(cm!(rdma_get_cm_event(channel.0, &raw mut event)), 0);
    assert_eq!(cm!(rdma_destroy_id(id)), -1);
    assert_eq!(errno(), libc::EBUSY);
    assert_eq!(device.violations(), ["rdma_destroy_id: 1 events are not acknowledged"]);
    assert_eq!(device.leaks().len(), 1);
    assert_eq!(cm!(rdma_ack_cm_event(event)), 0);
    end(id);
}

#[test]
fn identifiers_move_to_another_channel_with_their_events() {
    let device = SoftDevice::new();
    let (first, second) = (Channel::new(), Channel::new());
    let id = first.identifier(c::RDMA_PS_TCP);
    let mut address = in_c(at(device.address(1).unwrap(), 9));
    let code = cm!(rdma_resolve_addr(id, ptr::null_mut(), (&raw mut address).cast(), 1));
    assert_eq!(code, 0);
    assert_eq!(cm!(rdma_migrate_id(id, second.0)), 0);
    assert!(first.is_quiet());
    second.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(unsafe { (*id).channel }, second.0);
    end(id);
}

#[test]
fn an_endpoint_without_a_channel_waits_in_each_call() {
    let device = SoftDevice::new();
    let ip = device.address(1).unwrap();
    let mut listener = ptr::null_mut();
    let code =
        cm!(rdma_create_id(ptr::null_mut(), &raw mut listener, ptr::null_mut(), c::RDMA_PS_TCP));
    assert_eq!(code, 0);
    let mut address = in_c(at(ip, 0));
    assert_eq!(cm!(rdma_bind_addr(listener, (&raw mut address).cast())), 0);
    assert_eq!(cm!(rdma_listen(listener, 1)), 0);
    let port = u16::from_be(cm!(rdma_get_src_port(listener)));
    let client = thread::spawn(move || {
        let (node, service) = (format!("{ip}\0"), format!("{port}\0"));
        let mut info = ptr::null_mut();
        let code = cm!(rdma_getaddrinfo(
            node.as_ptr().cast(),
            service.as_ptr().cast(),
            ptr::null(),
            &raw mut info
        ));
        assert_eq!(code, 0);
        let mut init = c::ibv_qp_init_attr {
            cap: c::ibv_qp_cap { max_send_wr: 1, max_send_sge: 1, ..Default::default() },
            ..Default::default()
        };
        let mut id = ptr::null_mut();
        let code = cm!(rdma_create_ep(&raw mut id, info, ptr::null_mut(), &raw mut init));
        assert_eq!(code, 0, "errno {}", errno());
        cm!(rdma_freeaddrinfo(info));
        assert_eq!(cm!(rdma_connect(id, ptr::null_mut())), 0, "errno {}", errno());
        cm!(rdma_destroy_ep(id));
    });
    let mut request = ptr::null_mut();
    assert_eq!(cm!(rdma_get_request(listener, &raw mut request)), 0);
    add_pair(request);
    assert_eq!(cm!(rdma_accept(request, ptr::null_mut())), 0, "errno {}", errno());
    client.join().unwrap();
    end(request);
    end(listener);
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn a_datagram_service_is_looked_up_and_a_group_joined() {
    let device = SoftDevice::new();
    let (server, client) = (Channel::new(), Channel::new());
    let (listener, address) = listen(&server, c::RDMA_PS_UDP, device.address(1).unwrap());
    let active = resolve(&client, c::RDMA_PS_UDP, address);
    add_pair(active);
    let mut wanted = param(b"who?");
    assert_eq!(cm!(rdma_connect(active, &raw mut wanted)), 0);
    let request = server.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((&request.data[..4], request.data.len()), (b"who?".as_slice(), 180));
    let passive = request.id;
    add_pair(passive);
    let mut accepted = param(b"me");
    assert_eq!(cm!(rdma_accept(passive, &raw mut accepted)), 0);
    let found = client.expect(c::RDMA_CM_EVENT_ESTABLISHED);
    let mut found = unsafe { found.raw.param.ud };
    let number = unsafe { (*(*passive).qp).qp_num };
    assert_eq!((found.qp_num, found.qkey), (number, c::RDMA_UDP_QKEY));
    let ah = unsafe { call!(ibv_create_ah((*active).pd, &raw mut found.ah_attr)) };
    assert!(!ah.is_null());
    assert_eq!(unsafe { call!(ibv_destroy_ah(ah)) }, 0);

    let mut cookie = 5u8;
    let cookie: *mut c_void = (&raw mut cookie).cast();
    let mut group = in_c(at([239, 1, 2, 3].into(), 0));
    let code = cm!(rdma_join_multicast(active, (&raw mut group).cast(), cookie));
    assert_eq!(code, 0, "errno {}", errno());
    let joined = client.expect(c::RDMA_CM_EVENT_MULTICAST_JOIN);
    let ud = unsafe { joined.raw.param.ud };
    assert_eq!((ud.qp_num, ud.private_data), (0xff_ffff, cookie.cast_const()));
    let gid = unsafe { ud.ah_attr.grh.dgid.raw };
    assert_eq!((&gid[..2], &gid[12..]), ([0xff, 0x0e].as_slice(), [239, 1, 2, 3].as_slice()));
    assert_eq!(unsafe { call!(ibv_destroy_qp((*active).qp)) }, libc::EBUSY);
    assert_eq!(cm!(rdma_leave_multicast(active, (&raw mut group).cast())), 0);
    for id in [active, passive, listener] {
        end(id);
    }
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn ipv6_addresses_name_ports_as_well() {
    let mut gid = [0xfd; 16];
    let name = ptr::from_ref(&gid).addr().to_be_bytes();
    gid[8..].copy_from_slice(&name);
    let entry = GidEntry { gid, kind: c::IBV_GID_TYPE_ROCE_V2 };
    let device = SoftDevice::builder().gids(vec![entry]).build();
    let channel = Channel::new();
    let ip = device.address(1).unwrap();
    assert!(ip.is_ipv6());
    let (listener, address) = listen(&channel, c::RDMA_PS_TCP, ip);
    let active = resolve(&channel, c::RDMA_PS_TCP, address);
    assert_eq!(cm!(rdma_connect(active, ptr::null_mut())), 0);
    let passive = channel.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST).id;
    // A peer that goes before it is answered is gone.
    end(active);
    assert_eq!(cm!(rdma_accept(passive, ptr::null_mut())), -1);
    end(passive);
    end(listener);
}

#[test]
fn the_devices_of_the_connection_manager_are_open_once() {
    let device = SoftDevice::new();
    let mut count = 0;
    let list = cm!(rdma_get_devices(&raw mut count));
    assert!(count >= 1);
    let contexts = unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap()) };
    let ours = contexts.iter().find(|&&context| {
        let raw = unsafe { (*context).device };
        crate::support::name(raw) == device.name()
    });
    assert!(ours.is_some());
    cm!(rdma_free_devices(list));
    assert_eq!(device.leaks(), [""; 0]);
}
