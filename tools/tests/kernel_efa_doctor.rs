//! `rdma4rs doctor` beside EFA devices: the model under the unmodified driver.
#![expect(clippy::unwrap_used, reason = "helpers of tests stop the test")]

use std::{env, fs, process::Command};

use serde_json::Value;

/// Verdict, detail and remedy of each check, by its name.
fn doctor() -> Vec<[String; 4]> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma4rs"));
    let output = command.args(["doctor", "--json", "-d", "efa"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let field = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .map(|check| ["what", "verdict", "detail", "remedy"].map(|name| field(check, name)))
        .collect()
}

fn check<'c>(checks: &'c [[String; 4]], what: &str) -> [&'c str; 3] {
    let found = checks.iter().find(|check| check[0] == what);
    let [_, verdict, detail, remedy] = found.unwrap_or_else(|| unreachable!("{what}: {checks:?}"));
    [verdict, detail, remedy]
}

#[test]
fn an_efa_device_is_told_with_its_abilities_and_a_card_without_driver_is_found() {
    if env::var_os("RDMA4RS_EFA_DEVICES").is_none() {
        println!("skipped: this needs the guest of the testbed with EFA devices");
        return;
    }
    let checks = doctor();
    let [verdict, place, _] = check(&checks, "efa_0");
    let (address, _) = place.strip_prefix("PCI ").unwrap().split_once(", driver efa").unwrap();
    assert_eq!(verdict, "yes", "{place}");
    let [verdict, detail, _] = check(&checks, "efa_0: EFA");
    assert_eq!((verdict, detail.contains("RDMA write")), ("yes", true), "{detail}");
    // The driver takes them, and is asked with something that is none.
    assert_eq!(check(&checks, "efa_0: dma-bufs")[..2], ["yes", "taken"]);
    assert!(check(&checks, "efa_0 port 1")[1].starts_with("active, "));
    assert_eq!(check(&checks, "efa_0 port 1: GIDs")[0], "yes");

    let driver = "/sys/bus/pci/drivers/efa";
    fs::write(format!("{driver}/unbind"), address).unwrap();
    let checks = doctor();
    fs::write(format!("{driver}/bind"), address).unwrap();
    let [verdict, detail, remedy] = check(&checks, &format!("PCI {address} (1d0f:efa2)"));
    assert_eq!((verdict, detail), ("note", "can do RDMA and has no driver"));
    assert!(remedy.contains("`modprobe efa`"), "{remedy}");
}
