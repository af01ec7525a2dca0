//! Connections as futures, on tokio.

use std::{sync::Arc, time::Duration};

use ibverbs::connection::{DatagramListener, EventChannel, Identifier, Listener, PortSpace, Route};
use tokio::time::timeout;

use crate::support::{End, IPV4, PATIENCE, listen, parameters, require_device, send};

const COUNT: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_connect_and_accept_at_a_time() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let listener = Arc::new(listener);
    let serve = |listener: Arc<Listener>| async move {
        let request = listener.request().await.unwrap();
        let end = End::on(&request.context().unwrap());
        let queue_pair = request.initialize(end.pair()).unwrap();
        (request.start_accept(queue_pair, &parameters()).unwrap().await.unwrap(), end)
    };
    let connect = move || async move {
        let route = Route::to(address).start().unwrap().await.unwrap();
        let end = End::on(&route.context().unwrap());
        let queue_pair = route.initialize(end.pair()).unwrap();
        (route.start_connect(queue_pair, &parameters()).unwrap().await.unwrap(), end)
    };
    let servers: Vec<_> = (0..COUNT).map(|_| tokio::spawn(serve(Arc::clone(&listener)))).collect();
    let clients: Vec<_> = (0..COUNT).map(|_| tokio::spawn(connect())).collect();
    let work = async {
        let (mut served, mut connected) = (Vec::new(), Vec::new());
        for (server, client) in servers.into_iter().zip(clients) {
            served.push(server.await.unwrap());
            connected.push(client.await.unwrap());
        }
        for client in connected {
            let number = client.0.queue_pair().number();
            let of_client = |server: &(ibverbs::connection::Connection<'_>, End)| {
                server.0.queue_pair().query().unwrap().peer() == number
            };
            let server = served.swap_remove(served.iter().position(of_client).unwrap());
            send(&client, &server, b"from task to task");
            // Two tasks may wait for the end of one connection; the event goes to one of them.
            drop(client);
            server.0.disconnected().await.unwrap();
        }
    };
    timeout(PATIENCE, work).await.unwrap();
}

#[tokio::test]
async fn futures_that_are_dropped_take_nothing_with_them() {
    require_device!();
    let (listener, address) = listen(IPV4);
    // One that waited in vain, before there is a request.
    timeout(Duration::from_millis(20), listener.request()).await.unwrap_err();
    let route = Route::to(address).start().unwrap().await.unwrap();
    let end = End::on(&route.context().unwrap());
    let queue_pair = route.initialize(end.pair()).unwrap();
    let connecting = route.start_connect(queue_pair, &parameters()).unwrap().into_future();
    // Giving up tells the peer, whose request is left for the next who asks.
    timeout(Duration::from_millis(20), connecting).await.unwrap_err();
    let request = timeout(PATIENCE, listener.request()).await.unwrap().unwrap();
    assert_eq!(request.local_address(), Some(address));

    let channel = EventChannel::create().unwrap();
    let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
    timeout(Duration::from_millis(20), channel.event()).await.unwrap_err();
    identifier.resolve_address(None, address, PATIENCE).unwrap();
    let event = timeout(PATIENCE, channel.event()).await.unwrap().unwrap();
    assert_eq!(event.identifier(), identifier.number());
}

#[tokio::test]
async fn datagram_services_are_looked_up() {
    require_device!();
    let listener = DatagramListener::bind(IPV4.parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    let serve = async {
        let request = listener.request().await.unwrap();
        request.reject(b"not today").unwrap();
    };
    let look_up = async {
        let route = Route::to(address).resolve_datagrams().unwrap();
        route.start_look_up(b"").unwrap().await.unwrap_err()
    };
    let both = async { tokio::join!(serve, look_up) };
    let ((), error) = timeout(PATIENCE, both).await.unwrap();
    assert!(error.to_string().contains("by the program"), "{error}");
}

#[test]
fn without_a_runtime_waiting_is_an_error() {
    use std::{future::Future, pin::pin, task::Context};
    require_device!();
    let (listener, _) = listen(IPV4);
    let mut request = pin!(listener.request());
    let polled = request.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert!(error.to_string().contains("no tokio runtime"), "{error}");
}
