//! `GET /global_config_dict_yaml`: the configuration of a collection, which the head server provides.

use axum::Extension;
use axum::Json;
use axum::http::{HeaderMap, header};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;

use crate::connection::Below;
use rollout_wire::digest::hex;

/// Names of the instances in the configuration.
const AGENT: &str = "rollout_host_agent";
const ENVIRONMENT: &str = "rollout_host";

/// Returns the configuration: YAML in a JSON string. Its addresses are the one at which the caller reached this server, with
/// the key and the path of the plugin, because Gym adds only the route to them.
pub(super) async fn configuration(headers: HeaderMap, below: Option<Extension<Below>>) -> Json<String> {
    let address = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1");
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port)
        }
        _ => (address, "80"),
    };
    let host = format!("{}{host}", user_info(&headers).unwrap_or_default());
    let port = match below {
        Some(Extension(Below(path))) => json!(format!("{port}{path}")),
        None => json!(port.parse::<u16>().unwrap_or(80)),
    };
    // JSON is YAML.
    let at = json!({"entrypoint": "app.py", "host": host, "port": port});
    let mut environment = at.clone();
    environment["agent_server"] = json!({"type": "responses_api_agents", "name": AGENT});
    let document = json!({
        AGENT: {"responses_api_agents": {"rollout_host": at}},
        ENVIRONMENT: {"environment_servers": {"rollout_host": environment}},
        "head_server": {"host": host, "port": port},
    });
    Json(document.to_string())
}

/// Returns the user name and the key of a request in the form of a URL's user information, if the request has them.
fn user_info(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let credentials = BASE64_STANDARD.decode(given.strip_prefix("Basic ")?).ok()?;
    let credentials = String::from_utf8(credentials).ok()?;
    let (name, key) = credentials.split_once(':')?;
    Some(format!("{}:{}@", encoded(name), encoded(key)))
}

/// Returns a text with all but unreserved characters percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => {
                encoded.push('%');
                encoded.push_str(&hex(&[byte]).to_uppercase());
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(headers: &[(&str, &str)], below: Option<&str>) -> serde_json::Value {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let below = below.map(|path| Extension(Below(path.to_owned())));
        let Json(yaml) = configuration(map, below).await;
        serde_json::from_str(&yaml).unwrap()
    }

    #[tokio::test]
    async fn the_addresses_are_those_at_which_the_caller_found_the_server() {
        let plain = read(&[("host", "h:9000")], None).await;
        let server = &plain["rollout_host"]["environment_servers"]["rollout_host"];
        assert_eq!((&server["host"], &server["port"]), (&json!("h"), &json!(9000)));
        assert_eq!(server["agent_server"]["name"], AGENT);
        // rollout:k/y
        let keyed =
            read(&[("host", "[::1]:9000"), ("authorization", "Basic cm9sbG91dDprL3k=")], Some("/p/calc"))
                .await;
        let server = &keyed["rollout_host"]["environment_servers"]["rollout_host"];
        assert_eq!(
            (&server["host"], &server["port"]),
            (&json!("rollout:k%2Fy@[::1]"), &json!("9000/p/calc"))
        );
    }
}
