"""Every key of the settings has a test that fails where the training ignores the key."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from scalewise.plan.config.settings import Settings

TESTS = Path(__file__).parents[1]

SHOWN_BY: dict[str, tuple[str, ...]] = {
    "dataset": ("test_every_sample_is_trained_on_and_tested_once_over_all_ranks",),
    "image_size": (
        "test_images_have_the_size_that_was_asked_for_and_the_model_fits_them",
        "test_images_are_brought_to_the_size_asked_for",
    ),
    "model": ("test_windows_hold_every_step_once_and_give_the_throughput",),
    "pretrained": ("test_pretrained_weights_are_what_training_begins_from",),
    "scaling": ("test_strong_scaling_keeps_the_global_batch_and_weak_scaling_the_batch_per_device",),
    "global_batch_size": (
        "test_strong_scaling_keeps_the_global_batch_and_weak_scaling_the_batch_per_device",
        "test_windows_hold_every_step_once_and_give_the_throughput",
    ),
    "batch_size_per_device": (
        "test_strong_scaling_keeps_the_global_batch_and_weak_scaling_the_batch_per_device",
    ),
    "accumulation_steps": (
        "test_several_passes_of_a_step_learn_what_one_pass_of_the_whole_batch_learns",
        "test_gradients_are_exchanged_in_the_last_pass_of_a_step_alone",
        "test_parts_of_gradients_too_are_exchanged_in_the_last_pass_alone",
        "test_a_rank_shares_its_part_of_a_step_evenly_between_passes",
    ),
    "epochs": ("test_the_log_has_one_line_for_each_epoch",),
    "steps": (
        "test_a_training_that_steps_end_is_completed_and_has_evaluated_nothing",
        "test_a_training_that_steps_end_is_measured_over_just_these_steps",
        "test_a_training_that_was_cut_off_ends_once_its_throughput_is_known",
        "test_steps_end_a_training_in_the_middle_of_an_epoch_without_an_evaluation_and_after_all_epochs_too",
    ),
    "stop_at_accuracy": ("test_training_ends_when_the_accuracy_has_been_held_as_long_as_asked_for",),
    "stop_patience_epochs": (
        "test_training_ends_when_the_accuracy_has_been_held_as_long_as_asked_for",
        "test_the_accuracy_must_be_held_for_the_epochs_of_patience",
    ),
    "optimizer": (
        "test_the_optimizer_is_the_one_that_is_asked_for",
        "test_steps_are_those_of_torchs_own_optimizer",
    ),
    "learning_rate": ("test_an_epoch_is_recorded_with_the_learning_rate_it_used",),
    "learning_rate_scaling": (
        "test_the_rate_grows_with_the_devices_as_the_rule_says",
        "test_the_rate_grows_with_the_ranks_and_rises_over_the_warm_up",
    ),
    "learning_rate_warmup_epochs": (
        "test_a_warm_up_rises_in_equal_steps_and_reaches_the_whole_rate_right_after",
        "test_the_rate_grows_with_the_ranks_and_rises_over_the_warm_up",
    ),
    "momentum": ("test_sgd_follows_momentum_and_weight_decay_as_written_down",),
    "weight_decay": (
        "test_sgd_follows_momentum_and_weight_decay_as_written_down",
        "test_weight_decay_pulls_weights_towards_zero",
    ),
    "label_smoothing": ("test_label_smoothing_is_in_the_loss_of_training_alone",),
    "schedule": (
        "test_a_step_schedule_counts_epochs_not_steps",
        "test_a_cosine_falls_from_the_whole_rate_to_nothing_over_the_whole_run",
        "test_onecycle_rises_for_three_tenths_and_falls_for_the_rest",
        "test_the_schedule_reaches_an_optimizer_whose_states_are_divided",
    ),
    "schedule_gamma": ("test_a_step_schedule_counts_epochs_not_steps",),
    "schedule_step_epochs": ("test_a_step_schedule_counts_epochs_not_steps",),
    "crop_padding": (
        "test_crops_move_images_by_at_most_the_padding",
        "test_all_crops_and_flips_come_out_equally_often",
        "test_crops_and_flips_leave_exactly_the_images_that_are_possible",
    ),
    "horizontal_flip": (
        "test_flips_mirror_about_every_second_image",
        "test_all_crops_and_flips_come_out_equally_often",
    ),
    "loader": (
        "test_the_workers_loader_has_a_process_for_each_cpu_of_a_rank",
        "test_both_loaders_feed_a_rank_the_same_images_in_the_same_order",
    ),
    "precision": (
        "test_bf16_computes_in_16_bits_what_fp32_computes_in_32",
        "test_fp16_computes_in_16_bits_and_scales_its_gradients",
        "test_tf32_is_on_where_it_is_asked_for_and_nowhere_else",
    ),
    "channels_last": (
        "test_channels_last_holds_for_images_and_for_weights",
        "test_images_come_in_the_layout_asked_for",
    ),
    "compile": ("test_compile_compiles_the_model",),
    "parallelism": (
        "test_zero1_divides_the_optimizers_states_and_leaves_the_parameters_whole",
        "test_fsdp_divides_parameters_and_states",
        "test_a_model_in_parts_and_another_loader_learn_the_same",
    ),
    "gradient_as_bucket_view": ("test_gradients_as_bucket_views_share_the_memory_of_their_buckets",),
    "static_graph": ("test_a_static_graph_is_what_ddp_was_told",),
    "bucket_cap_mb": ("test_smaller_buckets_are_more_buckets",),
    "communication_hook": (
        "test_the_hook_is_what_ddp_compresses_with",
        "test_rounded_numbers_learn_nearly_but_not_exactly_the_same",
    ),
    "cpus_per_device": (
        "test_each_rank_has_the_threads_and_the_cpus_it_was_given",
        "test_a_rank_of_two_cpus_has_two_threads_and_both_cpus",
        "test_the_workers_loader_has_a_process_for_each_cpu_of_a_rank",
    ),
    "launcher": ("test_a_run_says_what_started_its_ranks",),
    "rendezvous": (
        "test_however_ranks_are_started_and_meet_they_leave_the_same_records",
        "test_ranks_that_meet_by_a_file_publish_no_address_and_open_no_port_for_a_store",
        "test_agents_that_meet_by_a_file_publish_no_address",
    ),
    "warmup_steps": ("test_windows_hold_every_step_once_and_give_the_throughput",),
    "deterministic": (
        "test_deterministic_is_in_force_while_training",
        "test_deterministic_refuses_what_has_no_deterministic_way",
    ),
    "save_model": ("test_a_saved_model_has_the_accuracy_that_was_recorded",),
    "seed": (
        "test_another_seed_gives_other_weights_and_another_order",
        "test_each_repeat_has_a_seed_of_its_own_shared_by_all_device_counts",
    ),
}


@cache
def all_tests() -> frozenset[str]:
    """Names of the functions of all test files."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py"))
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_no_option_goes_without_a_test_of_its_effect() -> None:
    assert set(SHOWN_BY) == set(Settings.model_fields), "name here the test that shows what the key does"


@pytest.mark.parametrize("key", SHOWN_BY)
@pytest.mark.slow
def test_the_tests_of_an_option_exist(key: str) -> None:
    assert SHOWN_BY[key]
    assert set(SHOWN_BY[key]) - all_tests() == set()
