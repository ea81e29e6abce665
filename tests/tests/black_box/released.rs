//! What is released: the program without anything that only tests need.

use std::{fs, process::Command};

use onceward_tests::node::binary;

#[test]
fn nothing_of_the_faults_that_tests_choose_is_in_the_program() {
    let program = binary();
    let bytes = fs::read(&program).unwrap();
    for name in ["ONCEWARD_FAULT", "answer-before-apply", "monotonic_rate_ppm"] {
        assert!(!bytes.windows(name.len()).any(|text| text == name.as_bytes()), "{name} is in {}", program.display());
    }
    let check = || {
        let mut command = Command::new(&program);
        command.args(["config", "check"]).env_clear();
        command
    };
    let with_fault = check().env("ONCEWARD_FAULT", "no-such").output().unwrap();
    assert!(with_fault.status.success(), "{with_fault:?}");
    assert_eq!(with_fault.stdout, check().output().unwrap().stdout);
}
