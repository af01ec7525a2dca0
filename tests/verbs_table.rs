//! `docs/verbs.md` says where each verb of C is in Rust and where it is tested. It is generated:
//! `RDMA4RS_UPDATE=1 cargo test --test verbs_table` writes it anew.
#![expect(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

/// Verbs that have no method here, and why.
const NOT_WRAPPED: &[(&str, &str)] = &[
    ("ibv_alloc_buf", "for confidential machines, rdma-core 64; no device here has it"),
    ("ibv_free_buf", "as `ibv_alloc_buf`"),
    ("ibv_reg_buf_mr", "as `ibv_alloc_buf`"),
    ("ibv_export_buf_dmabuf_fd", "as `ibv_alloc_buf`"),
    ("ibv_alloc_dmah", "steering tags, rdma-core 59; no device here has them"),
    ("ibv_dealloc_dmah", "as `ibv_alloc_dmah`"),
    ("ibv_reg_mr_ex", "as `ibv_alloc_dmah`; without a handle it is what `register` does"),
    ("ibv_inc_err_comp_cntr", "errors are counted by the device"),
    ("rdma_get_src_port", "`Identifier::local_address` has it"),
    ("rdma_get_dst_port", "`Identifier::peer_address` has it"),
    ("efadv_get_max_sq_depth", "rdma-core 63; creating a queue pair says what it can hold"),
    ("efadv_get_max_rq_depth", "as `efadv_get_max_sq_depth`"),
    (
        "ibv_import_dm",
        "device memory of another process, whose length nobody tells, so that nothing could be checked",
    ),
    ("ibv_unimport_dm", "as `ibv_import_dm`"),
    ("ibv_reg_mr_iova", "`ibv_reg_mr_iova2` does the same and more"),
    ("ibv_rate_to_mbps", "arithmetic on codes that `Address` does not use"),
    ("ibv_rate_to_mult", "as `ibv_rate_to_mbps`"),
    ("ibv_event_type_str", "`AsyncEventKind` prints itself"),
    ("ibv_node_type_str", "`NodeType` has constants"),
    ("ibv_port_state_str", "`PortState` prints itself"),
    ("ibv_wc_status_str", "`CompletionStatus` prints itself"),
    ("ibv_wr_opcode_str", "`Operation` prints itself"),
    ("ibv_post_srq_ops", "tag matching; no device model here has it"),
    ("ibv_wr_send_tso", "`QueuePair::post_segmented` posts `IBV_WR_TSO` by `ibv_post_send`"),
    ("ibv_wc_read_tm_info", "tag matching; no device model here has it"),
    ("ibv_wr_set_inline_data_list", "`Inline` is one piece"),
    ("ibv_open_qp", "shares an XRC target by number between processes; `XrcTarget` is made anew"),
    (
        "rdma_create_qp",
        "queue pairs come from `QueuePairBuilder` and are moved by `rdma_init_qp_attr`",
    ),
    ("rdma_create_qp_ex", "as `rdma_create_qp`"),
    ("rdma_destroy_qp", "as `rdma_create_qp`"),
    ("rdma_create_ep", "`Listener` and `Connection` do the same from safe parts"),
    ("rdma_destroy_ep", "as `rdma_create_ep`"),
    ("rdma_get_request", "as `rdma_create_ep`"),
    ("rdma_getaddrinfo", "`ToSocketAddrs` of the standard library resolves names"),
    ("rdma_freeaddrinfo", "as `rdma_getaddrinfo`"),
    ("rdma_query_addrinfo", "as `rdma_getaddrinfo`; rdma-core 60"),
    ("rdma_resolve_addrinfo", "as `rdma_getaddrinfo`; rdma-core 60"),
    ("rdma_get_devices", "`Devices` lists them"),
    ("rdma_free_devices", "as `rdma_get_devices`"),
    ("rdma_event_str", "`EventKind` prints itself"),
    ("rdma_write_cm_event", "user-defined events, rdma-core 60; Rust has channels"),
    (
        "rdma_get_remote_ece",
        "the extended connection establishment of librdmacm is for vendors' libraries",
    ),
    ("rdma_set_local_ece", "as `rdma_get_remote_ece`"),
    ("rdma_reject_ece", "as `rdma_get_remote_ece`"),
    ("efadv_create_comp_cntr", "counters in memory of the caller; `ibv_create_comp_cntr` serves"),
    ("efadv_create_driver_qp", "`efadv_create_qp_ex` does the same and more"),
];

/// Verbs that something safe calls: dropping, posting, polling. The path in quotes is where.
const INSIDE: &[(&str, &str)] = &[
    ("ibv_close_device", "drop of `Context`"),
    ("ibv_dealloc_pd", "drop of `ProtectionDomain`"),
    ("ibv_destroy_ah", "drop of `AddressHandle`"),
    ("ibv_destroy_comp_channel", "drop of `CompletionChannel`"),
    ("ibv_destroy_cq", "drop of `CompletionQueue`"),
    ("ibv_destroy_srq", "drop of `SharedReceiveQueue`"),
    ("ibv_destroy_comp_cntr", "drop of `CompletionCounter`"),
    ("ibv_detach_mcast", "drop of `MulticastMembership`"),
    ("ibv_free_device_list", "drop of `Devices`"),
    ("ibv_free_dm", "drop of `DeviceMemory`"),
    ("ibv_destroy_flow", "drop of `Flow`"),
    ("ibv_destroy_counters", "drop of `FlowCounters`"),
    ("ibv_destroy_wq", "drop of `WorkQueue`"),
    ("ibv_destroy_rwq_ind_table", "drop of `IndirectionTable`"),
    ("ibv_close_xrcd", "drop of `XrcDomain`"),
    ("ibv_dealloc_mw", "drop of `MemoryWindow`"),
    ("ibv_dealloc_td", "drop of `ThreadDomain`"),
    ("ibv_qp_to_qp_ex", "`QueuePairBuilder::create`"),
    ("ibv_wr_abort", "`QueuePair::post_send`"),
    ("ibv_wr_set_inline_data", "`QueuePair::post_send`"),
    ("ibv_wr_set_sge", "`QueuePair::post_send`"),
    ("ibv_wr_set_sge_list", "`QueuePair::post_send`"),
    ("ibv_wr_atomic_cmp_swp", "`SendWr::compare_and_swap`"),
    ("ibv_wr_atomic_fetch_add", "`SendWr::fetch_and_add`"),
    ("ibv_wr_local_inv", "`SendWr::local_invalidate`"),
    ("ibv_wr_rdma_read", "`SendWr::read`"),
    ("ibv_wr_rdma_write", "`SendWr::write`"),
    ("ibv_wr_rdma_write_imm", "`SendWr::write_with_imm`"),
    ("ibv_wr_send", "`SendWr::send`"),
    ("ibv_wr_send_imm", "`SendWr::send_with_imm`"),
    ("ibv_wr_send_inv", "`SendWr::send_with_invalidate`"),
    ("ibv_wc_read_byte_len", "`ExtendedWork::byte_length`"),
    ("ibv_wc_read_completion_ts", "`ExtendedWork::timestamp`"),
    ("ibv_wc_read_completion_wallclock_ns", "`ExtendedWork::wall_clock`"),
    ("ibv_wc_read_cvlan", "`ExtendedWork::vlan`"),
    ("ibv_wc_read_flow_tag", "`ExtendedWork::flow_tag`"),
    ("ibv_wc_read_dlid_path_bits", "`ExtendedWork::path_bits`"),
    ("ibv_wc_read_imm_data", "`ExtendedWork::immediate`"),
    ("ibv_wc_read_opcode", "`ExtendedWork::operation`"),
    ("ibv_wc_read_qp_num", "`ExtendedWork::queue_pair`"),
    ("ibv_wc_read_sl", "`ExtendedWork::service_level`"),
    ("ibv_wc_read_slid", "`ExtendedWork::source_lid`"),
    ("ibv_wc_read_src_qp", "`ExtendedWork::source_queue_pair`"),
    ("ibv_wc_read_vendor_err", "`ExtendedCompletion::outcome`"),
    ("ibv_wc_read_wc_flags", "`ExtendedWork::immediate`"),
    ("rdma_set_option", "`Identifier::set_type_of_service`"),
    ("rdma_destroy_event_channel", "drop of `EventChannel`"),
    ("rdma_destroy_id", "drop of `Identifier`"),
];

#[test]
fn the_table_of_verbs_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = table(root);
    let path = root.join("docs/verbs.md");
    if env::var_os("RDMA4RS_UPDATE").is_some() {
        fs::write(&path, table).expect("docs/verbs.md can be written");
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == table,
        "docs/verbs.md is not up to date: RDMA4RS_UPDATE=1 cargo test --test verbs_table"
    );
}

fn table(root: &Path) -> String {
    let found = aliases(root);
    let tests = test_sources(root);
    let mut text = String::from(
        "# Verbs\n\n<!-- generated: RDMA4RS_UPDATE=1 cargo test --test verbs_table -->\n\nEach function of C, \
         where it is in Rust, and the test sources that call it. Names without a release are older than \
         rdma-core's numbering.\n",
    );
    for (title, verbs) in verbs(root) {
        text += &format!("\n## {title}\n\n| C | since | Rust | tested in |\n|---|---|---|---|\n");
        for verb in verbs {
            let since =
                rdma_sys::since(&verb).filter(|since| !since.starts_with("1.")).unwrap_or("");
            let (rust, tested) = match found.get(verb.trim_start_matches('_')) {
                Some(paths) => {
                    let quoted: Vec<String> =
                        paths.iter().map(|path| format!("`{path}`")).collect();
                    (quoted.join(", "), tested(paths, &tests))
                }
                None => elsewhere(&verb, &tests),
            };
            text += &format!("| `{verb}` | {since} | {rust} | {tested} |\n");
        }
    }
    text
}

/// Every function there is, by library; the inline ones too.
fn verbs(root: &Path) -> Vec<(&'static str, Vec<String>)> {
    let inline = fs::read_to_string(root.join("ibverbs/sys/src/inline.rs")).expect("inline.rs");
    let mut inline: Vec<String> = inline
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("ibv_") || word.starts_with("efadv_w"))
        .filter(|word| is_function(word))
        .map(str::to_owned)
        .collect();
    inline.sort();
    inline.dedup();
    let names = |symbols: &[rdma_sys::Symbol]| {
        symbols.iter().map(|symbol| symbol.name.to_owned()).collect::<Vec<_>>()
    };
    let exported = names(rdma_sys::Verbs::SYMBOLS);
    inline.retain(|name| !exported.contains(name));
    vec![
        ("libibverbs", exported),
        ("libibverbs, inline in the header", inline),
        ("librdmacm", names(rdma_sys::ConnectionManager::SYMBOLS)),
        ("libefa", names(rdma_sys::Efa::SYMBOLS)),
    ]
}

/// Types and helpers of the bindings that are no verbs.
fn is_function(word: &str) -> bool {
    const TYPES: [&str; 40] = [
        "ibv_context",
        "ibv_pd",
        "ibv_mr",
        "ibv_mw",
        "ibv_cq",
        "ibv_cq_ex",
        "ibv_qp",
        "ibv_qp_ex",
        "ibv_srq",
        "ibv_dm",
        "ibv_td",
        "ibv_wq",
        "ibv_wc",
        "ibv_gid",
        "ibv_sge",
        "ibv_xrcd",
        "ibv_ah",
        "ibv_flow",
        "ibv_counters",
        "ibv_send_wr",
        "ibv_recv_wr",
        "ibv_ops_wr",
        "ibv_data_buf",
        "ibv_mw_bind",
        "ibv_mw_bind_info",
        "ibv_mw_type",
        "ibv_wc_opcode",
        "ibv_wc_tm_info",
        "ibv_values_ex",
        "ibv_port_attr",
        "ibv_device_attr_ex",
        "ibv_query_device_ex_input",
        "ibv_rwq_ind_table",
        "ibv_advise_mr_advice",
        "ibv_query_port_ex",
        "ibv_flow_attr",
        "ibv_wq_attr",
        "ibv_inc_rkey",
        "ibv_query_device",
        "ibv_query_port",
    ];
    !TYPES.contains(&word) && !word.ends_with("_attr") && !word.ends_with("_attr_ex")
}

/// Verb to the Rust items that carry it as an alias.
fn aliases(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (krate, folder) in [("ibverbs", "ibverbs/src"), ("efa", "efa/src")] {
        for path in sources(&root.join(folder)) {
            let text = fs::read_to_string(&path).expect("a source can be read");
            let (mut pending, mut owner) = (Vec::new(), String::new());
            for line in text.lines() {
                if line.starts_with("impl") {
                    owner = implemented_type(line);
                } else if line == "}" {
                    owner.clear();
                }
                let trimmed = line.trim();
                if let Some(alias) = trimmed.strip_prefix("#[doc(alias = \"") {
                    pending.push(alias.trim_end_matches("\")]").to_owned());
                } else if trimmed.starts_with("pub(") || trimmed.starts_with("fn ") {
                    pending.clear();
                } else if let Some(name) = item_name(trimmed) {
                    let path = match owner.as_str() {
                        "" if trimmed.contains(" fn ") => format!("{krate}::{name}"),
                        "" => name,
                        owner => format!("{owner}::{name}"),
                    };
                    for alias in pending.drain(..) {
                        found.entry(alias).or_default().insert(path.clone());
                    }
                }
            }
        }
    }
    found
}

/// The type of an `impl` line, without its parameters.
fn implemented_type(line: &str) -> String {
    let after = match line.split_once(" for ") {
        Some((_, after)) if !line.contains("for<") => after,
        _ => {
            let rest = line.trim_start_matches("impl");
            // Past the parameters of the impl itself.
            let mut depth = 0;
            let end = rest.char_indices().find(|(_, c)| {
                match c {
                    '<' => depth += 1,
                    '>' => depth -= 1,
                    _ => {}
                }
                depth == 0 && *c == ' '
            });
            end.map_or(rest, |(at, _)| &rest[at..])
        }
    };
    after.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned()
}

/// The name of the item that a line begins.
fn item_name(line: &str) -> Option<String> {
    let rest = line.strip_prefix("pub ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let at = words.iter().position(|word| ["fn", "struct", "enum", "trait"].contains(word))?;
    let name = words.get(at + 1)?;
    Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
}

/// Rust sources below a folder, sorted.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Test sources by their path below the root.
fn test_sources(root: &Path) -> Vec<(String, String)> {
    ["ibverbs/tests", "efa/tests", "tests", "nvmeof/tests", "examples"]
        .iter()
        .flat_map(|folder| sources(&root.join(folder)))
        .filter(|path| {
            !path
                .components()
                .any(|part| part.as_os_str().to_string_lossy().starts_with("compile_"))
        })
        .map(|path| {
            let name = path.strip_prefix(root).expect("it lies below").display().to_string();
            (name, fs::read_to_string(&path).expect("a source can be read"))
        })
        .filter(|(name, _)| !name.starts_with("examples/support"))
        .collect()
}

/// The first few sources that use one of the paths.
fn tested(paths: &BTreeSet<String>, tests: &[(String, String)]) -> String {
    let uses = |text: &str| {
        paths.iter().any(|path| {
            let (owner, name) = path.rsplit_once("::").unwrap_or(("", path));
            // A name that many types have counts only beside its own type's.
            let common =
                ["create", "allocate", "import", "attach", "register", "read", "write", "null"];
            let typed = !common.contains(&name) || text.contains(owner);
            let call = |sign: &str| {
                text.contains(&format!("{sign}{name}("))
                    || text.contains(&format!("{sign}{name}::<"))
            };
            let called = [".", "::", " ", "("].iter().any(|sign| call(sign));
            // What is dropped is known by its type's name.
            typed && (called || owner.is_empty() && text.contains(name))
        })
    };
    let mut names =
        tests.iter().filter(|(_, text)| uses(text)).map(|(name, _)| format!("`{name}`"));
    let first: Vec<String> = names.by_ref().take(3).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "**no test**".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// For a verb that is no alias: what calls it and where that is tested, or why there is nothing.
fn elsewhere(verb: &str, tests: &[(String, String)]) -> (String, String) {
    if let Some((_, place)) = INSIDE.iter().find(|(name, _)| *name == verb) {
        let path = place.split('`').nth(1).unwrap_or_default().to_owned();
        return ((*place).to_owned(), tested(&BTreeSet::from([path]), tests));
    }
    let reason = NOT_WRAPPED.iter().find(|(name, _)| *name == verb);
    let text = reason
        .map_or_else(|| "**not wrapped**".to_owned(), |(_, why)| format!("not wrapped: {why}"));
    (text, String::new())
}
