//! Objects that are made and destroyed again and again, on a device of the kernel.
//!
//! `RDMA4RS_OBJECTS` is how many of each kind are made, 1,000 if it is not set: an emulated machine
//! takes its time. `cargo testbed run --env RDMA4RS_OBJECTS=10000 -- PROGRAM` runs it at full length.

#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
mod common;
#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "common/kernel.rs"]
mod kernel;

#[cfg(test)]
mod tests {
    use std::{
        any::Any,
        env, fs,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Instant,
    };

    use ibverbs::{
        Access, Address, AddressHandle, CompletionChannel, CompletionFields, CompletionQueue,
        ConnectOptions, Connected, Context, DatagramOptions, Gid, LocalPort, MemoryRegion,
        MemoryWindow, MulticastMembership, Posting, ProtectionDomain, QueueKey, QueuePair, Rc,
        Receiving, Reset, SharedReceiveQueue, SharedReceiveQueueOptions, Type1, Type2, Uc, Ud,
    };
    use log::{Level, LevelFilter, Log, Metadata, Record};

    use crate::{
        common::{ALL, Host},
        kernel::{LOOPBACK, open, resident_kibibytes, resources},
    };

    /// What is made on a context.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Kind {
        Domain,
        Region,
        Channel,
        Queue,
        ExtendedQueue,
        SharedQueue,
        Reliable(Posting),
        Unreliable(Posting),
        Datagram(Posting),
        Handle,
        WindowOfType1,
        WindowOfType2,
        Membership,
    }

    const KINDS: [Kind; 16] = [
        Kind::Domain,
        Kind::Region,
        Kind::Channel,
        Kind::Queue,
        Kind::ExtendedQueue,
        Kind::SharedQueue,
        Kind::Reliable(Posting::Extended),
        Kind::Reliable(Posting::Classic),
        Kind::Unreliable(Posting::Extended),
        Kind::Unreliable(Posting::Classic),
        Kind::Datagram(Posting::Extended),
        Kind::Datagram(Posting::Classic),
        Kind::Handle,
        Kind::WindowOfType1,
        Kind::WindowOfType2,
        Kind::Membership,
    ];

    /// Contexts that are open at a time.
    const SITES: usize = 3;
    /// Handles of a context that are alive are always fewer, and half as many most of the time.
    const ALIVE: usize = 96;
    /// For each context, so many objects of each kind.
    const EACH_PER_CONTEXT: u32 = 20;

    /// A context, and handles of what was made on it, in no order. An object ends when its handle is gone and nothing
    /// that was made from it is left.
    struct Site {
        context: Arc<Context>,
        port: LocalPort,
        alive: Vec<(Kind, Box<dyn Any>)>,
    }

    /// The same numbers in each run.
    struct Random(u64);

    /// What happens, and how often it did.
    struct Work {
        random: Random,
        sites: Vec<Site>,
        made: [u32; KINDS.len()],
        contexts: u32,
    }

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap() % limit
        }

        fn coin(&mut self) -> bool {
            self.below(2) == 0
        }
    }

    impl Work {
        /// Makes one object of some kind, and drops others or none.
        fn step(&mut self) {
            let enough = self.contexts * EACH_PER_CONTEXT;
            if self.sites.len() < SITES {
                self.open();
            } else if self.made.iter().all(|made| *made >= enough) {
                let site = self.random.below(SITES);
                self.close(site);
                self.open();
            }
            let site = self.random.below(self.sites.len());
            let kind = KINDS[self.random.below(KINDS.len())];
            self.make(site, kind);
            while self.sites[site].alive.len() > self.random.below(ALIVE) {
                let alive = &mut self.sites[site].alive;
                drop(alive.swap_remove(self.random.below(alive.len())));
            }
        }

        fn open(&mut self) {
            let Host { context, domain, port } = open(LOOPBACK).unwrap();
            let alive: Vec<(_, Box<dyn Any>)> = vec![(Kind::Domain, Box::new(domain))];
            self.sites.push(Site { context, port, alive });
            self.contexts += 1;
        }

        /// Drops the handles of a context in any order, its own among them.
        fn close(&mut self, site: usize) {
            let Site { context, mut alive, .. } = self.sites.swap_remove(site);
            let mut context = Some(context);
            while !alive.is_empty() {
                if self.random.below(alive.len()) == 0 {
                    context = None;
                }
                drop(alive.swap_remove(self.random.below(alive.len())));
            }
            drop(context);
        }

        fn close_all(&mut self) {
            while !self.sites.is_empty() {
                self.close(0);
            }
        }

        fn make(&mut self, site: usize, kind: Kind) {
            let context = Arc::clone(&self.sites[site].context);
            let object: Box<dyn Any> = match kind {
                Kind::Domain => Box::new(Arc::new(ProtectionDomain::allocate(context).unwrap())),
                Kind::Channel => Box::new(Arc::new(CompletionChannel::create(context).unwrap())),
                Kind::Queue | Kind::ExtendedQueue => {
                    let mut builder = CompletionQueue::builder(&context, 16);
                    if self.random.coin() {
                        let channel: Arc<CompletionChannel<'_>> = self.any(site, Kind::Channel);
                        builder = builder.channel(channel);
                    }
                    if kind == Kind::ExtendedQueue {
                        builder = builder.fields(CompletionFields::BYTE_LENGTH);
                    }
                    Box::new(Arc::new(builder.create().unwrap()))
                }
                Kind::Region => {
                    let access = if self.random.coin() { ALL } else { Access::WINDOW_BIND };
                    let bytes = vec![0; 1 + self.random.below(4 * 4096)];
                    let domain = self.domain(site);
                    Box::new(MemoryRegion::register(domain, bytes, access).unwrap())
                }
                Kind::SharedQueue => {
                    let options = SharedReceiveQueueOptions::new(16);
                    Box::new(Arc::new(
                        SharedReceiveQueue::create(self.domain(site), options).unwrap(),
                    ))
                }
                Kind::Reliable(posting) => self.connected::<Rc>(site, posting),
                Kind::Unreliable(posting) => self.connected::<Uc>(site, posting),
                Kind::Datagram(posting) => {
                    let options = DatagramOptions::new(&self.sites[site].port, QueueKey(7));
                    let pair = self.pair::<Ud>(site, posting);
                    Box::new(Arc::new(pair.activate(&options).unwrap()))
                }
                Kind::Handle => {
                    let domain = self.domain(site);
                    let port = &self.sites[site].port;
                    let address = Address::new(port, port.gid.gid, port.attributes.lid());
                    Box::new(AddressHandle::create(domain, &address).unwrap())
                }
                Kind::WindowOfType1 => {
                    Box::new(MemoryWindow::<Type1>::allocate(self.domain(site)).unwrap())
                }
                Kind::WindowOfType2 => {
                    Box::new(MemoryWindow::<Type2>::allocate(self.domain(site)).unwrap())
                }
                Kind::Membership => self.membership(site),
            };
            self.sites[site].alive.push((kind, object));
            self.made[KINDS.iter().position(|other| *other == kind).unwrap()] += 1;
        }

        /// A queue pair that is connected to itself, or not yet.
        fn connected<T: Connected + Receiving + 'static>(
            &mut self,
            site: usize,
            posting: Posting,
        ) -> Box<dyn Any> {
            let pair = self.pair::<T>(site, posting);
            if self.random.coin() {
                return Box::new(pair);
            }
            let port = &self.sites[site].port;
            let itself = pair.endpoint(port);
            Box::new(pair.connect(&itself, &ConnectOptions::new(port)).unwrap())
        }

        fn pair<T: Receiving + 'static>(
            &mut self,
            site: usize,
            posting: Posting,
        ) -> QueuePair<'static, T, Reset> {
            let domain = self.domain(site);
            let [sends, receives] = [(); 2].map(|()| {
                let extended = self.random.coin();
                let kind = if extended { Kind::ExtendedQueue } else { Kind::Queue };
                self.any::<CompletionQueue<'_>>(site, kind)
            });
            let shared = self.random.coin().then(|| self.any(site, Kind::SharedQueue));
            let mut builder = QueuePair::<T, Reset>::builder(&domain, sends, receives);
            // Of the same domain, or the builder refuses it.
            if let Some(shared) = shared.filter(|shared: &Arc<SharedReceiveQueue<'_>>| {
                shared.protection_domain().as_raw() == domain.as_raw()
            }) {
                builder = builder.shared_receive_queue(shared);
            }
            builder.posting(posting).create().unwrap()
        }

        /// Of a group that the queue pair is no member of yet: by the time a number returns, its membership is gone.
        ///
        /// The numbers return because `rxe` forgets to take a group's address from its network device again.
        fn membership(&mut self, site: usize) -> Box<dyn Any> {
            let posting = if self.random.coin() { Posting::Extended } else { Posting::Classic };
            let pair: Arc<QueuePair<'_, Ud>> = self.any(site, Kind::Datagram(posting));
            let number = self.made.iter().sum::<u32>() % 1024;
            let mut group = [0; 16];
            group[..2].copy_from_slice(&[0xff, 0x0e]);
            group[12..].copy_from_slice(&number.to_be_bytes());
            Box::new(MulticastMembership::attach(pair, Gid(group), 0).unwrap())
        }

        fn domain(&mut self, site: usize) -> Arc<ProtectionDomain<'static>> {
            self.any(site, Kind::Domain)
        }

        /// One of those that are alive, or a new one if there is none.
        fn any<T: 'static>(&mut self, site: usize, kind: Kind) -> Arc<T> {
            let count = |site: &Site| site.alive.iter().filter(|(other, _)| *other == kind).count();
            if count(&self.sites[site]) == 0 {
                self.make(site, kind);
            }
            let site = &self.sites[site];
            let choice = self.random.below(count(site));
            let mut of_kind = site.alive.iter().filter(|(other, _)| *other == kind);
            let (_, object) = of_kind.nth(choice).unwrap();
            Arc::clone(object.downcast_ref::<Arc<T>>().unwrap())
        }
    }

    /// Counts what the crate complains of: a destruction that the kernel refused.
    struct Complaints(AtomicU32);

    static COMPLAINTS: Complaints = Complaints(AtomicU32::new(0));

    impl Log for Complaints {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.level() <= Level::Warn
        }

        fn log(&self, record: &Record<'_>) {
            if self.enabled(record.metadata()) {
                self.0.fetch_add(1, Ordering::Relaxed);
                println!("{}: {}", record.level(), record.args());
            }
        }

        fn flush(&self) {}
    }

    fn descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn many_of_each_object_in_any_order_leave_neither_memory_nor_anything_in_the_kernel() {
        let each = env::var("RDMA4RS_OBJECTS").map_or(1_000, |count| count.parse().unwrap());
        let Some(host) = open(LOOPBACK) else { return };
        drop(host);
        log::set_logger(&COMPLAINTS).unwrap();
        log::set_max_level(LevelFilter::Warn);
        let before = (resources(LOOPBACK), descriptors());
        let (start, made) = (Instant::now(), [0; KINDS.len()]);
        let random = Random(0x9e37_79b9_7f4a_7c15);
        let mut work = Work { random, sites: Vec::new(), made, contexts: 0 };
        let run_until = |work: &mut Work, each: u32| {
            while work.made.iter().any(|made| *made < each) {
                work.step();
            }
            work.close_all();
            resident_kibibytes()
        };
        let settled = run_until(&mut work, each / 10);
        let grown = run_until(&mut work, each).saturating_sub(settled);
        println!(
            "{each} of each of {} kinds, {} objects and {} contexts in {:?}; {grown} KiB more after nine tenths",
            KINDS.len(),
            work.made.iter().sum::<u32>(),
            work.contexts,
            start.elapsed()
        );
        assert_eq!((resources(LOOPBACK), descriptors()), before);
        assert_eq!(COMPLAINTS.0.load(Ordering::Relaxed), 0, "destructions were refused");
        assert!(grown < 2048, "{grown} KiB more are in use after nine tenths of the work");
    }
}
