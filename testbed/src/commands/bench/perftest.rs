//! What perftest prints.

use crate::error::{Error, Result};

/// Messages a second, from the output of a program for bandwidth. It tells messages in millions and bytes in MiB,
/// with few digits; for large messages the second has more of them.
pub(super) fn rate_of(output: &str) -> Result<f64> {
    const LARGE: f64 = 4096.0;
    let bytes = number_below(output, "MsgRate[Mpps]", 0)?;
    if bytes < LARGE {
        return number_below(output, "MsgRate[Mpps]", 4).map(|millions| millions * 1e6);
    }
    let mebibytes = number_below(output, "BW average[MiB/sec]", 3)?;
    Ok(mebibytes * f64::from(1 << 20) / bytes)
}

/// Microseconds that half of the messages did not exceed, and their mean, from the output of a program for latency.
pub(super) fn latency_of(output: &str) -> Result<[f64; 2]> {
    Ok([number_below(output, "t_typical[usec]", 4)?, number_below(output, "t_avg[usec]", 5)?])
}

/// A number of the first line below the headings, one of which must be there.
fn number_below(output: &str, heading: &str, place: usize) -> Result<f64> {
    let number = || -> Option<f64> {
        let mut lines = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
        lines.next().filter(|line| line.contains(heading))?;
        lines.next()?.split_whitespace().nth(place)?.parse().ok()
    };
    number().ok_or_else(|| Error::Format {
        what: "the output of perftest".into(),
        found: output.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_line_below_the_headings() {
        let text = " GID: 00:00\n---\n \
            #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
            8          2000             0.21               0.21   \t\t     0.027414\n---\n";
        assert!((rate_of(text).unwrap() - 27_414.0).abs() < 0.01);
        let large = text.replace("8          2000", "1048576    20").replace(" 0.21 ", " 22.03 ");
        assert_eq!(rate_of(&large).unwrap(), 22.03);
        rate_of("Couldn't connect").unwrap_err();
        latency_of(text).unwrap_err();
    }

    #[test]
    fn median_and_mean_are_read_from_the_line_below_the_headings() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
            8       500          36.49          532.21       39.45    \t       46.66\n";
        assert_eq!(latency_of(text).unwrap(), [39.45, 46.66]);
        rate_of(text).unwrap_err();
    }
}
