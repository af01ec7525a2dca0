use std::time::Duration;

use efa_device::FabricConfig;

use crate::driver::{Network, Post, srd_pair};

fn arrival_order(config: FabricConfig) -> Vec<u32> {
    let network = Network::new(config);
    let [mut a, mut b] = srd_pair(&network);
    for id in 0..16 {
        b.post_receive(id, 0, 64);
    }
    let ah = a.ah;
    let posts: Vec<Post> =
        (0..16).map(|id| Post::inline(id, b"x").immediate(id.into()).to(ah, &b.qp)).collect();
    a.driver.post(&mut a.qp, &posts);
    network.settle();
    assert_eq!(a.drain().len(), 16);
    let received = b.drain();
    let receives: Vec<u16> = received.iter().map(|done| done.id).collect();
    assert_eq!(receives, (0..16).collect::<Vec<u16>>(), "receives are used in order");
    received.iter().map(|done| done.immediate().expect("an immediate")).collect()
}

#[test]
fn messages_overtake_each_other_by_default_and_none_is_lost() {
    let in_order: Vec<u32> = (0..16).collect();
    let seeded = |seed| FabricConfig { seed, ..FabricConfig::default() };
    let mut order = arrival_order(seeded(1));
    assert_ne!(order, in_order);
    assert_eq!(order, arrival_order(seeded(1)), "a seed gives one order");
    assert_ne!(order, arrival_order(seeded(2)));
    order.sort_unstable();
    assert_eq!(order, in_order);
    assert_eq!(arrival_order(FabricConfig { reorder: false, ..seeded(1) }), in_order);
}

#[test]
fn code_that_takes_the_last_immediate_for_all_of_the_data_is_caught() {
    // Eight plain writes, then one with immediate that is to mean "all is there".
    let caught = (1..20).any(|seed| {
        let network = Network::new(FabricConfig { seed, ..FabricConfig::default() });
        let [mut a, mut b] = srd_pair(&network);
        b.post_receive(1, 0, 0);
        a.fill(0, &[7; 900]);
        let ah = a.ah;
        let write = |n: u16, a: &crate::driver::End, b: &crate::driver::End| {
            let at = u64::from(n) * 100;
            Post::write(n, a.mr.local(at, 100), b.mr.remote(at, 100)).to(ah, &b.qp)
        };
        let mut posts: Vec<Post> = (0..8).map(|n| write(n, &a, &b)).collect();
        posts.push(write(8, &a, &b).immediate(1));
        a.driver.post(&mut a.qp, &posts);
        let mut premature = false;
        for _ in 0..100 {
            network.advance(Duration::from_micros(5));
            if b.drain().iter().any(|done| done.immediate() == Some(1)) {
                assert_eq!(b.bytes(800, 100), [7; 100], "a message's own data is there");
                premature = b.bytes(0, 800) != [7; 800];
                break;
            }
        }
        network.settle();
        assert_eq!(b.bytes(0, 900), [7; 900]);
        premature
    });
    assert!(caught);
}

#[test]
fn data_is_whole_although_its_pieces_land_in_any_order() {
    let network = Network::new(FabricConfig::default());
    let [mut a, b] = srd_pair(&network);
    let data: Vec<u8> = (0..500_000_u32).map(|n| (n % 253) as u8).collect();
    a.fill(0, &data);
    a.post(Post::write(1, a.mr.local(0, 500_000), b.mr.remote(1, 500_000)).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    assert_eq!(b.bytes(1, 500_000), data);
    a.fill(0, &[0; 500_000]);
    a.post(Post::read(2, a.mr.local(2, 500_000), b.mr.remote(1, 500_000)).to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
    assert_eq!(a.bytes(2, 500_000), data);
}

#[test]
fn a_delay_holds_every_message_back() {
    let network = Network::new(FabricConfig {
        reorder: false,
        delay: Duration::from_millis(50),
        ..FabricConfig::default()
    });
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.advance(Duration::from_millis(49));
    assert_eq!((a.drain(), b.drain()), (vec![], vec![]));
    network.advance(Duration::from_millis(1));
    assert_eq!((a.only().status, b.only().status), (0, 0));
}
