use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Starts a server that sends an empty response to every request and counts its connections.
async fn server() -> (Target, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let accepted = Arc::<AtomicUsize>::default();
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
            });
        }
    });
    (Target::of(&Url::parse(&url).unwrap()).unwrap(), accepted)
}

async fn post(transport: &Transport, target: &Target) -> Result<u16, Unanswered> {
    let turn = transport.turn(target, Use::Model).await;
    let request = Outgoing { bytes: target.request(&Default::default(), b""), _charge: None };
    turn.post(target, request, 1024).await.map(|answer| answer.status)
}

fn listed(entry: &str) -> NetworkRules {
    NetworkRules::allow_list(vec![entry.parse().unwrap()])
}

#[tokio::test]
async fn a_scope_does_not_use_connections_of_another() {
    let (target, accepted) = server().await;
    let first = Transport::new(8).unwrap();
    let second = first.for_tenant(listed("127.0.0.1"));
    for transport in [&first, &second, &first.clone(), &second.clone()] {
        assert_eq!(post(transport, &target).await.unwrap(), 200);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn new_rules_apply_from_the_next_request_on() {
    let (target, accepted) = server().await;
    let transport = Transport::new(8).unwrap().for_tenant(NetworkRules::open());
    let held_before = transport.clone();
    assert_eq!(post(&held_before, &target).await.unwrap(), 200);

    transport.set_rules(listed("10.0.0.0/8"));
    let refused = post(&held_before, &target).await.unwrap_err();
    assert!(matches!(refused, Unanswered::Forbidden(_)), "{refused}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1);

    transport.set_rules(listed("127.0.0.0/8"));
    assert_eq!(post(&held_before, &target).await.unwrap(), 200);
    assert_eq!(accepted.load(Ordering::SeqCst), 2, "the idle connection was closed");
}

#[tokio::test]
async fn scopes_share_one_budget_of_connections() {
    let (target, accepted) = server().await;
    let first = Transport::new(2).unwrap();
    // The whole budget is idle in one scope, and is released for another.
    let turns = [first.turn(&target, Use::Model).await, first.turn(&target, Use::Callback).await];
    for turn in turns {
        let request = Outgoing { bytes: target.request(&Default::default(), b""), _charge: None };
        turn.post(&target, request, 1024).await.unwrap();
    }
    let second = first.for_tenant(NetworkRules::open());
    assert_eq!(post(&second, &target).await.unwrap(), 200);
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
    assert_eq!(first.shared.connections.available_permits(), 0);
}
