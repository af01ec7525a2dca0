//! The EFA devices of this machine.

use ibverbs::{Device, Devices, NodeType};

use crate::{Error, Result, attributes::query_device};

/// The EFA devices of this machine, in the order in which rdma-core lists them; an empty list is not an
/// error. Opens each candidate for a moment, allocates.
///
/// The kernel names them `efa_0`, or after their place on the bus (`rdmap16s27`) where udev renames them, so that
/// the name does not tell. The order says nothing about which is near to which GPU: compare
/// [`sysfs_path`](Device::sysfs_path)s.
///
/// # Errors
///
/// [`Error::Verbs`] if rdma-core is not installed, or the kernel has no RDMA support loaded.
///
/// # Examples
///
/// ```no_run
/// for device in efa::devices()? {
///     let attributes = efa::query_device(&device.open()?)?;
///     println!("{} moves {} bytes at a time", device.name(), attributes.max_rdma_size());
/// }
/// # Ok::<(), efa::Error>(())
/// ```
pub fn devices() -> Result<Vec<Device>> {
    devices_of(&ibverbs::devices()?)
}

/// Those devices of a list that are EFA ones.
///
/// # Errors
///
/// As for [`devices`].
pub fn devices_of(list: &Devices) -> Result<Vec<Device>> {
    let mut found = Vec::new();
    for device in list {
        // Other vendors' devices are not opened: for some that takes long.
        if device.node_type() != NodeType::UNSPECIFIED {
            continue;
        }
        match device.open().map_err(Error::from).and_then(|context| query_device(&context)) {
            Ok(_) => found.push(device.clone()),
            Err(Error::NotEfa { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
