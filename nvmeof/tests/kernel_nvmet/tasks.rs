//! Requests as futures.

use std::{path::Path, sync::Arc, time::Duration};

use nvmeof::{Buffer, Reconnect, Request};

use crate::target::{Nvmet, has_target, options, pattern, read_device};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_write_and_read_through_one_queue() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("tasks");
    let controller = target.connect(options().queue_entries(17)).unwrap();
    let namespace = Arc::new(controller.namespace(1).unwrap());
    let queue = controller.take_async_queue::<Buffer>().unwrap();
    let tasks: Vec<_> = (0..40_u64)
        .map(|task| {
            let (queue, namespace) = (queue.clone(), Arc::clone(&namespace));
            let buffer = controller.allocate(8192).unwrap();
            tokio::spawn(async move {
                buffer.write_at(0, &pattern(8192, task)).unwrap();
                let request = Request::write(&namespace, task * 16, buffer);
                let finished = queue.run(request).await.unwrap();
                finished.result.unwrap();
                let buffer = finished.buffer.unwrap();
                buffer.write_at(0, &[0; 8192]).unwrap();
                let finished = queue.run(Request::read(&namespace, task * 16, buffer)).await;
                let finished = finished.unwrap();
                finished.result.unwrap();
                assert!(finished.buffer.unwrap().to_vec() == pattern(8192, task));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let held = read_device(Path::new("/dev/ram0"), 39 * 8192, 8192);
    assert!(held == pattern(8192, 39));
}

#[tokio::test]
async fn a_future_whose_target_comes_back_ends_well() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("returning");
    let policy = Reconnect { delay: Duration::from_millis(50), ..Reconnect::default() };
    let controller = target.connect(options().reconnect(policy)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let queue = controller.take_async_queue::<Buffer>().unwrap();
    let mut buffer = controller.allocate(4096).unwrap();
    for _ in 0..5 {
        target.unlink();
        let read = queue.run(Request::read(&namespace, 0, buffer));
        let (finished, ()) = tokio::join!(read, async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            target.link();
        });
        let finished = finished.unwrap();
        finished.result.unwrap();
        buffer = finished.buffer.unwrap();
    }
}
