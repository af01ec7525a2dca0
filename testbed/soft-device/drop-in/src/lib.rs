//! The soft device as a drop-in `libibverbs.so.1`, and `libefa.so.1`.
//!
//! Copy or link the `libibverbs.so` that this package builds to `libibverbs.so.1`, put its folder into
//! `LD_LIBRARY_PATH`, and any program that was built for rdma-core finds one device, `soft0`.
//!
//! ```text
//! cargo build --release -p soft-device-drop-in
//! mkdir drop-in && cp target/release/libibverbs.so drop-in/libibverbs.so.1
//! LD_LIBRARY_PATH=drop-in ibv_devices
//! ```
//!
//! With `SOFT_DEVICE_KIND=efa` it is a device of the EFA kind. Its library is in the same file: link it to
//! `libefa.so.1` too.
#![expect(unsafe_code, reason = "exports the C symbols of libibverbs and libefa")]

use std::{
    env,
    ffi::{c_char, c_int, c_uint, c_void},
    sync::LazyLock,
};

use rdma_sys as c;
use soft_device::{SoftDevice, library};

/// The device that programs find.
static DEVICE: LazyLock<SoftDevice> = LazyLock::new(|| {
    if env::var_os("SOFT_DEVICE_KIND").is_some_and(|kind| kind == "efa") {
        SoftDevice::builder().efa(|_| ()).build()
    } else {
        SoftDevice::new()
    }
});

/// Exports each function of a list under its C name, from one of the library's tables.
macro_rules! export_from {
    ($table:expr, $($module:ident::$name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// See the manual page of this name.
            ///
            /// # Safety
            ///
            /// The contract is the one of the manual page.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($parameter: $type),*) -> $result {
                LazyLock::force(&DEVICE);
                let Some(function) = $table.and_then(|table| table.$name) else { std::process::abort() };
                // SAFETY: the caller keeps the contract, which is the same for both.
                unsafe { function($($parameter),*) }
            }
        )*
    };
}

macro_rules! export {
    ($($list:tt)*) => { export_from! { Some(library().verbs()), $($list)* } };
}

macro_rules! export_efa {
    ($($list:tt)*) => { export_from! { library().efa().ok(), $($list)* } };
}

soft_device::for_each_symbol!(export);
soft_device::for_each_efa_symbol!(export_efa);
