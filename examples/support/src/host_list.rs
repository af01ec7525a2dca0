//! Slurm's short form for many host names: `gpu[01-03,7],login2`.

/// The first host of a Slurm node list; `Err` says what is wrong with the list.
///
/// Brackets hold numbers and ranges whose zeros in front are part of the name; several brackets may
/// follow each other in one name. See `slurm.conf(5)`, "`NodeName`", and `scontrol show hostnames`.
pub(crate) fn first_host(list: &str) -> Result<String, String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(next) = rest.chars().next() {
        if next == ',' {
            break;
        }
        if next == '[' {
            let (inside, after) =
                rest[1..].split_once(']').ok_or("a bracket is opened and not closed")?;
            host.push_str(first_number(inside)?);
            rest = after;
        } else if next.is_ascii_alphanumeric() || matches!(next, '-' | '.' | '_' | ':') {
            host.push(next);
            rest = &rest[1..];
        } else {
            return Err(format!("{next:?} does not belong in a host name"));
        }
    }
    if host.is_empty() { Err("it begins with no host name".to_owned()) } else { Ok(host) }
}

/// `01` of `01-03,7`.
fn first_number(inside: &str) -> Result<&str, String> {
    let first = inside.split(',').next().unwrap_or(inside);
    let (low, high) = first.split_once('-').unwrap_or((first, first));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(low) && digits(high) {
        Ok(low)
    } else {
        Err(format!("[{inside}] is not a list of numbers and ranges"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_every_form() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[1-4]", "node1"),
            ("node[001-004,7]", "node001"),
            ("node[7,001-004]", "node7"),
            ("rack[2-3]gpu[08-09]", "rack2gpu08"),
            ("gpu-[3].cluster.example,login", "gpu-3.cluster.example"),
            ("a-b-1,c[2-3]", "a-b-1"),
            ("10.0.0.[5-6]", "10.0.0.5"),
        ] {
            assert_eq!(first_host(list).unwrap(), host, "{list}");
        }
    }

    #[test]
    fn broken_lists_are_refused_with_the_reason() {
        for list in ["", ",a", "node[1-4", "node[]", "node[a-b]", "node[1-]", "no de", "nöde", "a]"]
        {
            assert!(first_host(list).is_err(), "{list}");
        }
    }
}
