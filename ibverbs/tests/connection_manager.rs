//! How the connection manager is called, seen from a librdmacm that writes down what is asked of it.

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "a librdmacm made of the functions in this file")]

    use std::{
        ffi::{c_int, c_void},
        fs::File,
        mem,
        os::fd::{FromRawFd, IntoRawFd, OwnedFd},
        ptr,
        sync::{Mutex, MutexGuard, PoisonError},
    };

    use ibverbs::{
        Error,
        connection::{Event, EventChannel, EventKind, Identifier, PortSpace},
        sys::{
            ConnectionManager, Library, Verbs, rdma_cm_event, rdma_cm_id, rdma_event_channel,
            rdma_port_space,
        },
    };

    /// What was called, in order, and what the next call for an event returns.
    static CALLS: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    static EVENTS: Mutex<Vec<Scripted>> = Mutex::new(Vec::new());
    /// Tests take turns.
    static TURN: Mutex<()> = Mutex::new(());

    struct Scripted {
        identifier: usize,
        kind: u32,
        status: c_int,
        private_data: &'static [u8],
    }

    fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(call: &'static str) {
        locked(&CALLS).push(call);
    }

    unsafe extern "C" fn create_channel() -> *mut rdma_event_channel {
        note("create channel");
        let fd = File::open("/dev/null").unwrap().into_raw_fd();
        Box::into_raw(Box::new(rdma_event_channel { fd }))
    }

    unsafe extern "C" fn destroy_channel(channel: *mut rdma_event_channel) {
        note("destroy channel");
        // SAFETY: made by `create_channel`, and destroyed once.
        let channel = unsafe { Box::from_raw(channel) };
        // SAFETY: the channel's own descriptor.
        drop(unsafe { OwnedFd::from_raw_fd(channel.fd) });
    }

    unsafe extern "C" fn create_identifier(
        channel: *mut rdma_event_channel,
        identifier: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int {
        note("create identifier");
        let made = Box::new(rdma_cm_id { channel, context, ps, ..Default::default() });
        // SAFETY: the caller gives a valid place.
        unsafe { identifier.write(Box::into_raw(made)) };
        0
    }

    unsafe extern "C" fn destroy_identifier(identifier: *mut rdma_cm_id) -> c_int {
        note("destroy identifier");
        // SAFETY: made by `create_identifier` or `get_event`, and destroyed once.
        drop(unsafe { Box::from_raw(identifier) });
        0
    }

    unsafe extern "C" fn get_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int {
        let Some(scripted) = locked(&EVENTS).pop() else {
            // SAFETY: it has no preconditions.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: each thread's own errno.
            unsafe { errno.write(libc::EAGAIN) };
            return -1;
        };
        note("get event");
        let identifier = ptr::with_exposed_provenance_mut::<rdma_cm_id>(scripted.identifier);
        let (mut id, mut listen_id) = (identifier, ptr::null_mut());
        if scripted.kind == EventKind::CONNECT_REQUEST.0 {
            let new = rdma_cm_id { channel, ..Default::default() };
            (id, listen_id) = (Box::into_raw(Box::new(new)), identifier);
        }
        let (event_kind, status) = (scripted.kind, scripted.status);
        let param = Default::default();
        let mut made = rdma_cm_event { id, listen_id, event: event_kind, status, param };
        made.param.conn.private_data = scripted.private_data.as_ptr().cast();
        made.param.conn.private_data_len = scripted.private_data.len().try_into().unwrap();
        // SAFETY: the caller gives a valid place.
        unsafe { event.write(Box::into_raw(Box::new(made))) };
        0
    }

    unsafe extern "C" fn acknowledge(event: *mut rdma_cm_event) -> c_int {
        note("acknowledge");
        // SAFETY: made by `get_event`, and acknowledged once.
        drop(unsafe { Box::from_raw(event) });
        0
    }

    unsafe extern "C" fn destroy_queue_pair(_: *mut rdma_cm_id) {
        note("destroy queue pair");
    }

    const TABLE: ConnectionManager = ConnectionManager {
        rdma_create_event_channel: Some(create_channel),
        rdma_destroy_event_channel: Some(destroy_channel),
        rdma_create_id: Some(create_identifier),
        rdma_destroy_id: Some(destroy_identifier),
        rdma_get_cm_event: Some(get_event),
        rdma_ack_cm_event: Some(acknowledge),
        rdma_destroy_qp: Some(destroy_queue_pair),
        ..ConnectionManager::EMPTY
    };

    fn library(table: ConnectionManager) -> &'static Library {
        // SAFETY: the functions keep the contracts as far as these tests use them.
        let library = unsafe { Library::new("written down", Verbs::EMPTY) };
        // SAFETY: as above.
        Box::leak(Box::new(unsafe { library.with_connection_manager(table) }))
    }

    fn begin() -> (MutexGuard<'static, ()>, EventChannel) {
        let turn = locked(&TURN);
        locked(&CALLS).clear();
        locked(&EVENTS).clear();
        (turn, EventChannel::of(library(TABLE)).unwrap())
    }

    fn identifier(channel: &EventChannel) -> Identifier {
        Identifier::create(channel, PortSpace::TCP).unwrap()
    }

    /// What `try_event` makes of this event.
    fn report(channel: &EventChannel, of: &Identifier, kind: EventKind, status: c_int) -> Event {
        let (identifier, private_data) = (of.as_raw().expose_provenance(), b"why".as_slice());
        let (kind, scripted) = (kind.0, &EVENTS);
        locked(scripted).push(Scripted { identifier, kind, status, private_data });
        channel.try_event().unwrap().unwrap()
    }

    fn calls() -> Vec<&'static str> {
        mem::take(&mut *locked(&CALLS))
    }

    #[test]
    #[expect(clippy::mem_forget, reason = "an event that is leaked must have been acknowledged")]
    fn an_event_is_acknowledged_in_the_call_that_returns_it() {
        let (_turn, channel) = begin();
        let identifier = identifier(&channel);
        assert!(channel.try_event().unwrap().is_none());
        calls();
        let event = report(&channel, &identifier, EventKind::REJECTED, 28);
        assert_eq!(calls(), ["get event", "acknowledge"]);
        assert_eq!((event.identifier(), event.status()), (identifier.number(), 28));
        assert_eq!(event.private_data(), b"why");
        mem::forget(event);
        drop(identifier);
        assert_eq!(calls(), ["destroy identifier"]);
    }

    #[test]
    fn a_channel_is_destroyed_after_its_identifiers_whatever_is_dropped_first() {
        for channel_first in [true, false] {
            let (_turn, channel) = begin();
            let (a, b) = (identifier(&channel), identifier(&channel));
            calls();
            if channel_first {
                drop(channel);
                drop((a, b));
            } else {
                drop((b, a));
                drop(channel);
            }
            let expected = ["destroy identifier", "destroy identifier", "destroy channel"];
            assert_eq!(calls(), expected);
        }
    }

    #[test]
    fn an_identifier_never_destroys_a_queue_pair() {
        let (_turn, channel) = begin();
        drop(identifier(&channel));
        assert!(!calls().contains(&"destroy queue pair"));
    }

    #[test]
    fn a_request_is_destroyed_with_its_event_unless_it_was_taken() {
        let (_turn, channel) = begin();
        let listener = identifier(&channel);
        let mut event = report(&channel, &listener, EventKind::CONNECT_REQUEST, 0);
        assert_eq!(event.identifier(), listener.number());
        let request = event.take_request().unwrap();
        assert!(event.take_request().is_none());
        assert_ne!(request.number(), listener.number());
        calls();
        drop(event);
        assert!(calls().is_empty());
        drop(report(&channel, &listener, EventKind::CONNECT_REQUEST, 0));
        assert_eq!(calls(), ["get event", "acknowledge", "destroy identifier"]);
        // The request holds the channel too.
        drop((channel, listener, request));
        assert_eq!(calls().last(), Some(&"destroy channel"));
    }

    #[test]
    fn events_of_a_newer_library_are_values() {
        let (_turn, channel) = begin();
        let identifier = identifier(&channel);
        let event = report(&channel, &identifier, EventKind(4711), -libc::EIO);
        assert!(event.private_data().is_empty());
        let error = event.expect(EventKind::ESTABLISHED).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        assert!(error.to_string().contains("event 4711"), "{error}");
    }

    #[test]
    fn a_function_that_the_library_lacks_is_named_with_the_release_that_brought_it() {
        let error = EventChannel::of(library(ConnectionManager::EMPTY)).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("rdma_create_event_channel"), "{error}");
        let (_turn, channel) = begin();
        let error = identifier(&channel).disconnect().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    #[test]
    fn an_address_is_not_asked_for_its_route_before_it_has_a_device() {
        let table = ConnectionManager { rdma_resolve_route: Some(unreachable), ..TABLE };
        let (_turn, _channel) = begin();
        let channel = EventChannel::of(library(table)).unwrap();
        let error = identifier(&channel).resolve_route(std::time::Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }

    /// C reads the device through a null pointer here.
    unsafe extern "C" fn unreachable(_: *mut rdma_cm_id, _: c_int) -> c_int {
        panic!("called without a device");
    }
}
