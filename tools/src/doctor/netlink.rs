//! Questions about network interfaces that the kernel answers over netlink alone: PFC and global pause.
//!
//! Both are reads, which need no rights. A message is a header of 16 bytes, a header of the family, and attributes: length
//! and kind in two bytes each, then the value, filled up to four bytes. Numbers are in the order of the processor.

use std::{io, time::Duration};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
    socket_with, sockopt,
};

const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;

/// Flow control of all traffic by pause frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    /// It stops sending when it is told to.
    pub(crate) receives: bool,
    /// It tells the other side to stop.
    pub(crate) sends: bool,
}

/// The priorities for which PFC is on, a bit for each; `None` if the driver has none to tell.
pub(crate) fn priority_flow_control(interface: &str) -> io::Result<Option<u8>> {
    const GET: u16 = 78;
    const IEEE_GET: u8 = 21;
    let message = message(GET, [0, IEEE_GET, 0, 0], &attribute(1, &terminated(interface)));
    Ok(ask(None, &message)?.as_deref().and_then(enabled_priorities))
}

/// The pause frames of an interface; `None` if the driver has none to tell.
pub(crate) fn pause(interface: &str) -> io::Result<Option<Pause>> {
    const CONTROLLER: u16 = 16;
    const GET_FAMILY: u8 = 3;
    const PAUSE_GET: u8 = 21;
    const VERSION: u8 = 1;
    let question =
        message(CONTROLLER, [GET_FAMILY, VERSION, 0, 0], &attribute(2, &terminated("ethtool")));
    let Some(answer) = ask(Some(netlink::GENERIC), &question)? else { return Ok(None) };
    let Some(family) = number(find(&answer, 1)) else { return Ok(None) };
    let header = attribute(1 | NESTED, &attribute(2, &terminated(interface)));
    let question = message(family, [PAUSE_GET, VERSION, 0, 0], &header);
    Ok(ask(Some(netlink::GENERIC), &question)?.as_deref().and_then(pause_frames))
}

/// Bits of `struct ieee_pfc` among the attributes of an answer: the second byte.
fn enabled_priorities(attributes: &[u8]) -> Option<u8> {
    const IEEE: u16 = 13;
    const PFC: u16 = 2;
    find(find(attributes, IEEE)?, PFC)?.get(1).copied()
}

fn pause_frames(attributes: &[u8]) -> Option<Pause> {
    let flag = |kind| find(attributes, kind).and_then(<[u8]>::first).map(|&byte| byte != 0);
    Some(Pause { receives: flag(3)?, sends: flag(4)? })
}

/// Sends a question and gives the attributes of its answer; `None` if the driver or the kernel does not have this.
fn ask(protocol: Option<Protocol>, question: &[u8]) -> io::Result<Option<Vec<u8>>> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    send(&socket, question, SendFlags::empty())?;
    let mut answer = vec![0; 16 << 10];
    let (length, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    read(&answer[..length])
}

/// The attributes of an answer.
fn read(answer: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel's answer is cut");
    let length = answer.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or_else(cut)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let message = answer.get(..length).filter(|message| message.len() >= HEADER).ok_or_else(cut)?;
    if u16::from_ne_bytes([message[4], message[5]]) != ERROR {
        return Ok(Some(message.get(HEADER + FAMILY_HEADER..).ok_or_else(cut)?.to_vec()));
    }
    let code = message.get(HEADER..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
    let error = io::Error::from_raw_os_error(i32::from_ne_bytes(*code).saturating_neg());
    match error.kind() {
        // No such operation of the driver, or no such family in the kernel.
        io::ErrorKind::Unsupported | io::ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    }
}

/// A question with the header of its family: for data centre bridging a family and a command, for generic netlink a
/// command and a version.
fn message(kind: u16, family: [u8; FAMILY_HEADER], attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + family.len() + attributes.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    // Sequence and sender.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&family);
    message.extend_from_slice(attributes);
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend_from_slice(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// The value of the first attribute of this kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(number(attributes.get(..2))?);
        let found = number(attributes.get(2..4))? & 0x3fff;
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn number(bytes: Option<&[u8]>) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes?.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of this kind with a header of its family.
    fn answer(kind: u16, attributes: &[u8]) -> Vec<u8> {
        message(kind, [0; 4], attributes)
    }

    #[test]
    fn the_priorities_of_pfc_are_found_in_their_nest() {
        // pfc_cap, pfc_en, mbc, then a delay and two lists of counters.
        let pfc = [&[8, 0b1000, 0][..], &[0; 133]].concat();
        let ets = attribute(1, &[0; 27]);
        let nest = attribute(13 | NESTED, &[ets.clone(), attribute(2, &pfc)].concat());
        let name = attribute(1, &terminated("ens1f0np0"));
        let attributes = read(&answer(78, &[name.clone(), nest].concat())).unwrap().unwrap();
        assert_eq!(enabled_priorities(&attributes), Some(0b1000));

        let without = attribute(13, &ets);
        assert_eq!(enabled_priorities(&[name, without].concat()), None);
    }

    #[test]
    fn pause_frames_are_told_in_both_directions() {
        let header = attribute(1 | NESTED, &attribute(2, &terminated("eth0")));
        let pause = |receives: u8, sends: u8| {
            let flags = [attribute(2, &[1]), attribute(3, &[receives]), attribute(4, &[sends])];
            pause_frames(&[header.clone(), flags.concat()].concat())
        };
        assert_eq!(pause(1, 0), Some(Pause { receives: true, sends: false }));
        assert_eq!(pause(0, 1), Some(Pause { receives: false, sends: true }));
        assert_eq!(pause_frames(&header), None);
    }

    #[test]
    fn a_driver_without_the_operation_has_nothing_to_tell_and_other_errors_are_errors() {
        let error = |errno: rustix::io::Errno| {
            let mut bytes = answer(ERROR, &[0; 20]);
            bytes[HEADER..HEADER + 4].copy_from_slice(&(-errno.raw_os_error()).to_ne_bytes());
            read(&bytes)
        };
        assert_eq!(error(rustix::io::Errno::OPNOTSUPP).unwrap(), None);
        assert_eq!(error(rustix::io::Errno::NOENT).unwrap(), None);
        error(rustix::io::Errno::NODEV).unwrap_err();
    }

    #[test]
    fn answers_that_are_cut_anywhere_are_errors_or_tell_nothing() {
        let nest = attribute(13 | NESTED, &attribute(2, &[8, 8, 0, 0]));
        let bytes = answer(78, &nest);
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
        let attributes = read(&bytes).unwrap().unwrap();
        for cut in 0..attributes.len() - 2 {
            assert_eq!(enabled_priorities(&attributes[..cut]), None, "{cut}");
        }
        assert_eq!(find(&[0, 0, 0, 0, 0, 0, 0, 0], 1), None);
    }

    #[test]
    fn the_kernel_understands_both_questions() {
        // It knows the loopback interface, whose driver has neither, and no interface of the other name.
        assert_eq!(priority_flow_control("lo").unwrap(), None);
        assert_eq!(pause("lo").unwrap(), None);
        for error in [priority_flow_control("nosuch0").err(), pause("nosuch0").err()] {
            let expected = Some(rustix::io::Errno::NODEV.raw_os_error());
            assert_eq!(error.and_then(|error| error.raw_os_error()), expected);
        }
    }
}
