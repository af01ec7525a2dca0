//! Memory windows: what opens a part of a region to a peer, and what closes it again.

use ibverbs::{
    Access, BindOptions, CompletionStatus, Inline, MemoryRegion, MemoryWindow, Operation,
    Operations, Posting, Rc, RecvWr, RemoteMemory, SendWr, Type1, Type2, WindowKind,
};

use super::{ALL, End, Host};
use crate::run;

const OPERATIONS: Operations = Operations::COMMON
    .union(Operations::BIND_WINDOW)
    .union(Operations::LOCAL_INVALIDATE)
    .union(Operations::SEND_WITH_INVALIDATE);

/// Two connected ends, a window, and memory that only a window opens.
struct Stage<K> {
    /// The first to go, so that it is unbound when the queue pair and the region go.
    window: MemoryWindow<'static, K>,
    writer: End<Rc>,
    owner: End<Rc>,
    region: MemoryRegion<'static, Vec<u8>>,
}

impl<K: WindowKind> Stage<K> {
    fn new(host: &Host, posting: Posting) -> Self {
        let end = || host.end_for(posting, OPERATIONS).unwrap();
        let (writer, owner) = host.connect(end(), end());
        let window = MemoryWindow::allocate(&host.domain).unwrap();
        let region = host.region(vec![0; 4096], Access::LOCAL_WRITE | Access::WINDOW_BIND);
        Self { window, writer, owner, region }
    }

    /// Opens bytes 1024 to 2048.
    fn bind(&mut self) -> RemoteMemory {
        let part = self.region.window(1024..2048, Access::REMOTE_WRITE).unwrap();
        let opened =
            self.owner.pair.bind_window(&mut self.window, part, BindOptions::new(11)).unwrap();
        let completion = self.owner.sent();
        let work = completion.outcome().unwrap();
        assert_eq!((work.id(), work.operation()), (11, Operation::BIND_WINDOW));
        assert_eq!((opened.len(), opened.key()), (1024, self.window.remote_key()));
        assert_eq!(self.window.bound(), Some(opened));
        opened
    }

    fn write(&self, memory: &RemoteMemory) -> CompletionStatus {
        let write = SendWr::write(Inline(b"through the window"), &memory.at(0).unwrap());
        self.writer.pair.post_send(&mut [write.signaled()]).unwrap();
        self.writer.sent().status()
    }

    fn region_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        self.region.bytes().read(1024, &mut bytes).unwrap();
        bytes
    }
}

fn a_bound_window_is_written_through<K: WindowKind>(host: &Host, posting: Posting) {
    let mut stage = Stage::<K>::new(host, posting);
    let opened = stage.bind();
    assert_eq!(stage.write(&opened), CompletionStatus::SUCCESS);
    assert_eq!(stage.region_bytes(), b"through the window");
    opened.part(1000..1025).unwrap_err();
    // Past its end the memory is closed, although the region goes on.
    let past = RemoteMemory::new(opened.address() + 1020, 100, opened.key()).unwrap();
    if crate::CHECKS_ENDS_OF_WINDOWS {
        assert_eq!(stage.write(&past), CompletionStatus::REMOTE_ACCESS_ERROR);
    }
}

#[test]
fn a_window_of_type_1_opens_its_part_and_no_more() {
    run(a_bound_window_is_written_through::<Type1>);
}

#[test]
fn a_window_of_type_2_opens_its_part_and_no_more() {
    run(a_bound_window_is_written_through::<Type2>);
}

fn an_unbound_window_is_closed<K: WindowKind>(host: &Host, posting: Posting) {
    let mut stage = Stage::<K>::new(host, posting);
    let opened = stage.bind();
    assert_eq!(stage.write(&opened), CompletionStatus::SUCCESS);
    stage.owner.pair.unbind_window(&mut stage.window, &stage.region, BindOptions::new(12)).unwrap();
    assert_eq!(stage.owner.sent().outcome().unwrap().id(), 12);
    assert_eq!(stage.window.bound(), None);
    assert_eq!(stage.write(&opened), CompletionStatus::REMOTE_ACCESS_ERROR);
}

#[test]
fn unbinding_a_window_of_type_1_closes_it() {
    run(an_unbound_window_is_closed::<Type1>);
}

#[test]
fn unbinding_a_window_of_type_2_closes_it() {
    run(an_unbound_window_is_closed::<Type2>);
}

#[test]
fn binding_a_window_of_type_1_again_ends_the_key_before() {
    run(|host, posting| {
        let mut stage = Stage::<Type1>::new(host, posting);
        let old = stage.bind();
        let new = stage.bind();
        assert_ne!(old.key(), new.key());
        assert_eq!(stage.write(&new), CompletionStatus::SUCCESS);
        assert_eq!(stage.write(&old), CompletionStatus::REMOTE_ACCESS_ERROR);
    });
}

#[test]
fn a_window_of_type_2_is_bound_again_after_it_was_unbound() {
    run(|host, posting| {
        let mut stage = Stage::<Type2>::new(host, posting);
        let old = stage.bind();
        stage
            .owner
            .pair
            .unbind_window(&mut stage.window, &stage.region, BindOptions::new(1))
            .unwrap();
        stage.owner.sent().outcome().unwrap();
        let new = stage.bind();
        assert_ne!(old.key(), new.key());
        assert_eq!(stage.write(&new), CompletionStatus::SUCCESS);
        assert_eq!(stage.write(&old), CompletionStatus::REMOTE_ACCESS_ERROR);
    });
}

#[test]
fn the_owner_takes_the_key_away_with_a_request_of_its_own() {
    run(|host, posting| {
        let mut stage = Stage::<Type2>::new(host, posting);
        let opened = stage.bind();
        assert_eq!(stage.write(&opened), CompletionStatus::SUCCESS);
        let invalidate = SendWr::local_invalidate(opened.key()).id(9).signaled();
        stage.owner.pair.post_send(&mut [invalidate]).unwrap();
        let completion = stage.owner.sent();
        let work = completion.outcome().unwrap();
        assert_eq!((work.id(), work.operation()), (9, Operation::LOCAL_INVALIDATE));
        stage.window.invalidated(opened.key());
        assert_eq!(stage.window.bound(), None);
        assert_eq!(stage.write(&opened), CompletionStatus::REMOTE_ACCESS_ERROR);
    });
}

#[test]
fn a_peer_takes_the_key_away_with_its_message() {
    run(|host, posting| {
        let mut stage = Stage::<Type2>::new(host, posting);
        let opened = stage.bind();
        stage
            .owner
            .pair
            .post_receive(&mut [RecvWr::to(5, stage.owner.memory.segment(..64).unwrap())])
            .unwrap();
        assert_eq!(stage.write(&opened), CompletionStatus::SUCCESS);
        let done = SendWr::send_with_invalidate(Inline(b"done"), opened.key()).signaled();
        stage.writer.pair.post_send(&mut [done]).unwrap();
        stage.writer.sent().outcome().unwrap();
        let completion = stage.owner.received();
        let work = completion.outcome().unwrap();
        if crate::NAMES_INVALIDATED_KEYS {
            assert_eq!(work.invalidated_key(), Some(opened.key()));
        }
        assert_eq!(stage.owner.bytes(0, 4), b"done");
        stage.window.invalidated(opened.key());
        assert_eq!(stage.window.bound(), None);
        assert_eq!(stage.write(&opened), CompletionStatus::REMOTE_ACCESS_ERROR);
    });
}

#[test]
fn a_region_is_kept_while_a_window_is_bound_to_it() {
    run(|host, posting| {
        let mut stage = Stage::<Type1>::new(host, posting);
        stage.bind();
        let Stage { window, region, .. } = stage;
        let refused = region.try_into_buffer().unwrap_err();
        // The kernel's own word for it is EBUSY; its software device says EINVAL.
        let errno = refused.error.errno();
        assert!(matches!(errno, Some(libc::EBUSY | libc::EINVAL)), "{}", refused.error);
        let region = refused.object;
        drop(window);
        assert_eq!(region.into_buffer().unwrap().len(), 4096);
    });
}

#[test]
fn what_a_window_cannot_be_bound_to_is_refused_before_anything_is_posted() {
    run(|host, posting| {
        let closed = host.region(vec![0; 64], ALL);
        let refused = closed.window(.., Access::REMOTE_READ).unwrap_err();
        assert!(refused.to_string().contains("WINDOW_BIND"), "{refused}");
        let fixed = host.region(vec![0; 64], Access::WINDOW_BIND);
        let refused = fixed.window(.., Access::REMOTE_WRITE).unwrap_err();
        assert!(refused.to_string().contains("LOCAL_WRITE"), "{refused}");
        let mut stage = Stage::<Type2>::new(host, posting);
        stage.region.window(4000..4097, Access::REMOTE_READ).unwrap_err();
        let other = ibverbs::ProtectionDomain::allocate(&host.context).unwrap();
        let mut stranger = MemoryWindow::<Type2>::allocate(&other).unwrap();
        let part = stage.region.window(.., Access::REMOTE_READ).unwrap();
        let refused =
            stage.owner.pair.bind_window(&mut stranger, part, BindOptions::new(1)).unwrap_err();
        assert!(refused.error().to_string().contains("protection domain"), "{refused}");
        stage.bind();
    });
}
