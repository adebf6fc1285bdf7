use super::*;

fn rules(allow: &[&str]) -> NetworkRules {
    NetworkRules::allow_list(allow.iter().map(|text| text.parse().unwrap()).collect())
}

/// Returns the error for an address of a request, or "goes" if the address is allowed. The request has a name unless
/// `name` is empty.
fn verdict(rules: &NetworkRules, name: &str, address: &str, port: u16) -> String {
    let name = Some(name).filter(|name| !name.is_empty());
    let found = rules.check_address(HostAndPort { name, port }, address.parse().unwrap());
    found.map_or_else(|why| why.to_string(), |()| "goes".to_owned())
}

#[test]
fn public_addresses_are_allowed_and_private_ones_if_listed() {
    let all =
        ["model.internal", "*.svc.example:8000", "10.1.0.0/16", "10.2.0.7:9000", "::1/128", "[fd00::/8]:81"];
    let rules = rules(&all);
    let check = |name, address, port, goes| {
        assert_eq!(verdict(&rules, name, address, port) == "goes", goes, "{name} {address} {port}");
    };
    check("", "1.1.1.1", 80, true);
    check("any.example", "2606:4700::1111", 443, true);
    check("model.internal", "10.9.9.9", 80, true);
    check("MODEL.internal.", "127.0.0.1", 80, true);
    check("xmodel.internal", "10.9.9.9", 80, false);
    check("a.model.internal", "10.9.9.9", 80, false);
    check("a.svc.example", "10.9.9.9", 8000, true);
    check("a.b.svc.example", "10.9.9.9", 8000, true);
    check("a.svc.example", "10.9.9.9", 80, false);
    check("svc.example", "10.9.9.9", 8000, false);
    check(".svc.example", "10.9.9.9", 8000, false);
    check("xsvc.example", "10.9.9.9", 8000, false);
    check("", "10.1.255.1", 80, true);
    check("", "::ffff:10.1.2.3", 80, true);
    check("", "64:ff9b::10.1.2.3", 80, false);
    check("other", "10.1.255.1", 80, true);
    check("", "10.2.0.1", 9000, false);
    check("", "10.2.0.7", 9000, true);
    check("", "10.2.0.7", 80, false);
    check("", "::1", 80, true);
    check("", "127.0.0.1", 80, false);
    check("", "fd12::1", 81, true);
    check("", "fd12::1", 82, false);
    check("", "240.0.0.1", 80, false);
}

#[test]
fn closed_addresses_are_forbidden_under_any_rules_and_names() {
    let listed = rules(&["0.0.0.0/0", "::/0", "evil.example"]);
    for rules in [&NetworkRules::open(), &listed] {
        for address in
            ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0", "::"]
        {
            assert_ne!(verdict(rules, "", address, 80), "goes", "{address}");
            assert_ne!(verdict(rules, "evil.example", address, 80), "goes", "{address}");
        }
        assert_eq!(verdict(rules, "", "10.0.0.1", 80), "goes");
        assert_eq!(verdict(rules, "", "1.1.1.1", 80), "goes");
    }
}

#[test]
fn public_addresses_may_be_restricted_to_the_list_too() {
    let rules = NetworkRules { public: Reach::Listed, ..rules(&["api.example", "1.1.1.0/24"]) };
    assert_eq!(verdict(&rules, "api.example", "93.184.215.14", 443), "goes");
    assert_eq!(verdict(&rules, "", "1.1.1.1", 443), "goes");
    assert_eq!(
        verdict(&rules, "other.example", "93.184.215.14", 443),
        "its name leads to a public address, and the operator's list of what may be reached has no entry for it"
    );
}

#[test]
fn an_error_names_the_rule_and_only_addresses_from_the_request() {
    let rules = rules(&[]);
    let no_entry = "and the operator's list of what may be reached has no entry for it";
    assert_eq!(verdict(&rules, "", "10.0.0.7", 80), format!("10.0.0.7 is a private address, {no_entry}"));
    assert_eq!(
        verdict(&rules, "a", "10.0.0.7", 80),
        format!("its name leads to a private address, {no_entry}")
    );
    assert_eq!(verdict(&rules, "", "127.0.0.1", 80), format!("127.0.0.1 is a loopback address, {no_entry}"));
    assert_eq!(
        verdict(&rules, "", "169.254.169.254", 80),
        "169.254.169.254 is a link-local address; no request of this host goes there"
    );
    let literal = rules.check(&Url::parse("http://10.0.0.7/").unwrap()).unwrap_err();
    assert_eq!(literal.without_address(), format!("its address is a private address, {no_entry}"));
}

#[test]
fn an_address_in_a_url_is_recognized_in_every_notation() {
    let rules = rules(&[]);
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://%31%32%37.0.0.1/",
        "http://１２７.0.0.1/",
        "http://[::1]/",
        "http://[0:0::0:1]/",
        "http://[::ffff:7f00:1]/",
        "https://u:p@169.254.169.254:8443/latest",
        "http://0xa9fea9fe/",
        "http://2852039166/",
        "http://0/",
    ] {
        let url = Url::parse(url).unwrap();
        assert!(rules.check(&url).is_err(), "{url}");
    }
    for url in ["http://1.1.1.1/", "http://localhost/", "http://127.0.0.1.example/"] {
        assert!(rules.check(&Url::parse(url).unwrap()).is_ok(), "{url}");
    }
}

#[test]
fn only_the_allowed_addresses_of_a_name_are_used() {
    let found = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<SocketAddr>>();
    let target = HostAndPort { name: Some("n"), port: 80 };
    let both = found(&["10.0.0.1:80", "1.1.1.1:80"]);
    assert_eq!(rules(&[]).allowed(target, both.into_iter()).unwrap(), found(&["1.1.1.1:80"]));
    assert!(rules(&[]).allowed(target, found(&["10.0.0.1:80"]).into_iter()).is_err());
    assert_eq!(rules(&[]).allowed(target, found(&[]).into_iter()).unwrap(), []);
}

#[test]
fn an_entry_is_written_in_canonical_form() {
    fn check(text: &str, written: &str) {
        let entry: NetworkEntry = text.parse().unwrap();
        assert_eq!(entry.to_string(), written);
        assert_eq!(written.parse::<NetworkEntry>().unwrap(), entry, "{written}");
    }
    check("Model.Example.", "model.example");
    check("*.svc.example:8000", "*.svc.example:8000");
    check("localhost", "localhost");
    check("10.0.0.7", "10.0.0.7");
    check("10.1.0.0/16:8000", "10.1.0.0/16:8000");
    check("::1/128", "::1");
    check("[::1]:80", "[::1]:80");
    check("[fd00::/8]:81", "[fd00::/8]:81");
    check("fd00::/8", "fd00::/8");
    check("::ffff:10.0.0.1", "10.0.0.1");
    check("0.0.0.0/0", "0.0.0.0/0");
    check("bücher.example", "xn--bcher-kva.example");
    let rules = rules(&["10.1.0.0/16:8000", "localhost"]);
    let text = serde_json::to_string(&rules).unwrap();
    assert_eq!(text, r#"{"public":"open","private":"listed","allow":["10.1.0.0/16:8000","localhost"]}"#);
    assert_eq!(serde_json::from_str::<NetworkRules>(&text).unwrap(), rules);
}

#[test]
fn an_invalid_entry_is_refused_with_its_mistake() {
    fn check(text: &str, expected: &str) {
        let error = text.parse::<NetworkEntry>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for wrong in [
        "",
        "*",
        "*.",
        "a b",
        "a..b",
        "a/b",
        "u@a",
        "*.*.a",
        "10.0.0.0/33",
        "[::1",
        "[a]",
        "a:b:c",
        "1.2",
        "0x7f.1",
    ] {
        check(wrong, "is not a host or a range");
    }
    check("::ffff:10.0.0.0/104", "is not a host or a range");
    check("http://a", "is a URL");
    check("a:0", "'0' is not a port");
    check("a:http", "'http' is not a port");
    check("10.1.2.3/16", "the range is 10.1.0.0/16");
    check("169.254.169.254", "is a link-local address; no request");
    check("169.254.0.0/16", "is a link-local address; no request");
    check("fe80::/10", "is a link-local address; no request");
    check("0.0.0.0", "is the unspecified address");
    check("fd00:ec2::254", "metadata service");
}
