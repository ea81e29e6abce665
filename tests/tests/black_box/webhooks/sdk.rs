//! What exists for Svix works here: its official SDK, and the official package that verifies Standard Webhooks.

use std::{path::Path, process::Stdio, time::Duration};

use super::{cluster, schedule};

/// It waits for deliveries itself, and says which one does not come.
const SCRIPT_MAX: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_svix_sdk_works_with_only_its_server_url_changed() {
    let python = std::env::var_os("ONCEWARD_SDK_PYTHON")
        .expect("ONCEWARD_SDK_PYTHON names a Python that has the packages of tests/sdk; scripts/test makes it");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/webhooks.py");
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[200, 200])).start().await;
    let mut command = tokio::process::Command::new(python);
    command.arg(script).args(cluster.apis().into_iter().map(|api| api.url));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(SCRIPT_MAX, command.output()).await.expect("the script ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", output.status);
    cluster.assert_equal_state().await;
}
