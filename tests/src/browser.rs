//! A headless browser, Debian's Chromium, driven by WebDriver.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, Start, environments};

/// The driver of browsers, which runs until it is dropped.
pub struct BrowserDriver {
    process: Process,
    url: String,
    profiles: TempDir,
}

impl BrowserDriver {
    /// Starts the driver on a free port.
    pub async fn start() -> Self {
        let driver = folder().join("usr/bin/chromedriver");
        assert!(
            driver.is_file(),
            "there is no {driver:?}; run: tests/clients/setup {}",
            environments().display()
        );
        let profiles = tempfile::tempdir().expect("a temporary directory can be created");
        let mut command = Command::new(driver);
        command.arg("--port=0").env("LD_LIBRARY_PATH", libraries()).env("HOME", profiles.path());
        let process = command.start();
        let port = process.line("ChromeDriver was started successfully on port ").await;
        let port = port.trim_end_matches('.');
        Self { process, url: format!("http://127.0.0.1:{port}"), profiles }
    }

    /// Returns the address of the driver.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the arguments that start a separate browser with a window of this size.
    pub fn arguments(&self, [width, height]: [u32; 2], is_dark: bool) -> Vec<String> {
        let profile = self.profiles.path().join(format!("{width}-{height}-{is_dark}"));
        let scheme = if is_dark { 0 } else { 1 };
        vec![
            "--headless=new".to_owned(),
            // Tests may run as root, where the browser's own sandbox cannot start.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--window-size={width},{height}"),
            format!("--user-data-dir={}", profile.display()),
        ]
    }

    /// Returns the path of the browser.
    pub fn browser(&self) -> PathBuf {
        folder().join("usr/lib/chromium/chromium")
    }

    /// Returns the script of axe-core, which finds faults of accessibility.
    pub fn axe(&self) -> String {
        let path = environments().join("npm-axe/node_modules/axe-core/axe.min.js");
        std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{path:?}: {error}; run: tests/clients/setup {} npm-axe", environments().display())
        })
    }

    /// Returns the output of the driver, for messages.
    pub fn log(&self) -> String {
        self.process.stderr()
    }
}

fn folder() -> PathBuf {
    environments().join("chromium")
}

/// Returns the folders of the libraries that were unpacked with the browser.
fn libraries() -> String {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = folder().join("usr/lib").join(triple);
    [libraries.clone(), libraries.join("pulseaudio")].map(|folder: PathBuf| shown(&folder)).join(":")
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
