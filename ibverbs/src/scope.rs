//! Registering memory that is only borrowed, for as long as a closure runs.
#![expect(unsafe_code, reason = "registers borrowed memory")]

use std::{cell::RefCell, fmt, marker::PhantomData, process, ptr::NonNull};

use crate::{Access, Plain, ProtectionDomain, Region, Result, memory_region::register_host};

impl ProtectionDomain<'_> {
    /// Runs `work` with a scope in which borrowed memory can be registered; deregisters all of it before
    /// the borrows end, also if `work` panics. Like [`std::thread::scope`].
    ///
    /// Requests that still name such a region then complete with a protection error.
    ///
    /// # Aborts
    ///
    /// If a deregistration is refused, which happens while a memory window is bound to the region: the
    /// device could go on writing to memory whose borrow ends, and there is nothing else to stop it.
    ///
    /// # Examples
    ///
    /// ```
    /// use ibverbs::{Access, PostError, ProtectionDomain, QueuePair, Rc, SendWr};
    ///
    /// fn send(
    ///     domain: &ProtectionDomain<'_>,
    ///     pair: &QueuePair<'_, Rc>,
    ///     message: &mut [u8],
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     domain.scope(|scope| {
    ///         let region = scope.register(message, Access::empty())?;
    ///         pair.post_send(&mut [SendWr::send(region.segment(..)?).signaled()])?;
    ///         let mut slots = ibverbs::Completion::slots::<1>();
    ///         while pair.send_queue().poll(&mut slots)?.is_empty() {}
    ///         Ok(slots[0].outcome().map(drop)?)
    ///     })
    /// }
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        let registered = Registered(RefCell::default());
        let (environment, scope) = (PhantomData, PhantomData);
        let scope = Scope { domain: self, registered: &registered, environment, scope };
        work(&scope)
    }
}

/// Where borrowed memory is registered; see [`ProtectionDomain::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    domain: &'env ProtectionDomain<'env>,
    registered: &'scope Registered,
    /// Invariant, so that neither lifetime can be stretched.
    environment: PhantomData<&'env mut &'env ()>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Registers memory that is borrowed until the scope has ended. Enters the kernel, pins the pages.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<T: Plain>(
        &'scope self,
        memory: &'env mut [T],
        access: Access,
    ) -> Result<&'scope Region> {
        access.check_for_region()?;
        let length = size_of_val(memory);
        let address = NonNull::from(memory).cast::<u8>();
        // SAFETY: initialised and borrowed mutably for 'env, which outlives the scope, at whose end the
        // region is deregistered; nobody has a reference to it until then.
        let region = unsafe { register_host(self.domain, address, length, access) }?;
        let region = NonNull::from(Box::leak(Box::new(region)));
        self.registered.0.borrow_mut().push(region);
        // SAFETY: freed only by the scope's drop, which is after 'scope.
        Ok(unsafe { region.as_ref() })
    }
}

/// The regions of a scope; its drop ends them, however the scope ends.
///
/// Each is from `Box::leak`, so that it stays in place while references to it are out.
struct Registered(RefCell<Vec<NonNull<Region>>>);

impl Drop for Registered {
    fn drop(&mut self) {
        for region in self.0.get_mut().drain(..) {
            // SAFETY: from `Box::leak`, drained once, and no reference is left after 'scope.
            let mut region = unsafe { Box::from_raw(region.as_ptr()) };
            if let Err(error) = region.deregister() {
                let _abort = Abort;
                log::error!("{error}; a device may still write to borrowed memory: aborting");
            }
        }
    }
}

/// Aborts when it is dropped, also if the program's logger panics: the borrow must not end by that.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        process::abort();
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("regions", &self.registered.0.borrow().len())
            .finish_non_exhaustive()
    }
}
