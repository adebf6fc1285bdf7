;; The core module of a plugin of contract 0.1.0, a workflow and a grader. It is written by hand and must never change:
;; it stands for the plugins that exist.
;;
;; The workflow opens a sample, calls the policy once with the prompt, and fails if either fails. The grader rates the
;; first sample with 1 if there is a label and a conversation, otherwise with 0.
(module
  (import "rollout:plugin/samples@0.1.0" "[static]sample.open" (func $open (param i32 i32 i32 i32)))
  (import "rollout:plugin/samples@0.1.0" "[resource-drop]sample" (func $drop (param i32)))
  (import "rollout:plugin/models@0.1.0" "complete"
    (func $complete (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))

  (memory (export "memory") 2)
  (data (i32.const 16) "the sample cannot be opened")
  (data (i32.const 48) "the model does not answer")

  ;; End of the memory in use. The first kilobyte has texts and results.
  (global $end (mut i32) (i32.const 1024))

  ;; Allocates, and never frees: an instance lives for one run.
  (func $realloc (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32)
    (result i32)
    (local $at i32) (local $pages i32)
    (local.set $at
      (i32.and
        (i32.add (global.get $end) (i32.sub (local.get $align) (i32.const 1)))
        (i32.sub (i32.const 0) (local.get $align))))
    (global.set $end (i32.add (local.get $at) (local.get $size)))
    (local.set $pages
      (i32.sub (i32.shr_u (i32.add (global.get $end) (i32.const 65535)) (i32.const 16)) (memory.size)))
    (if (i32.gt_s (local.get $pages) (i32.const 0))
      (then (if (i32.eq (memory.grow (local.get $pages)) (i32.const -1)) (then (unreachable)))))
    (memory.copy (local.get $at) (local.get $old) (local.get $old_size))
    (local.get $at))

  ;; Writes the result `err(failed(text))` at 256.
  (func $fail (param $text i32) (param $length i32) (result i32)
    (i32.store8 (i32.const 256) (i32.const 1))
    (i32.store8 (i32.const 260) (i32.const 0))
    (i32.store (i32.const 264) (local.get $text))
    (i32.store (i32.const 268) (local.get $length))
    (i32.const 256))

  (func (export "rollout:plugin/workflow@0.1.0#run") (param $prompt i32) (param $length i32) (result i32)
    (local $sample i32)
    (call $open (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 512))
    (if (i32.load8_u (i32.const 512)) (then (return (call $fail (i32.const 16) (i32.const 27)))))
    (local.set $sample (i32.load (i32.const 516)))
    (call $complete
      (i32.const 0)                           ;; role: policy
      (i32.const 1) (local.get $sample)       ;; sample
      (i32.const 0) (local.get $prompt) (local.get $length) ;; conversation: history
      (i32.const 0) (i32.const 0)             ;; tools
      (i32.const 0) (i32.const 0) (i32.const 0) ;; params
      (i32.const 1)                           ;; keep-reply
      (i32.const 640))
    (if (i32.load8_u (i32.const 640)) (then (return (call $fail (i32.const 48) (i32.const 25)))))
    (call $drop (local.get $sample))
    ;; ok(outcome { messages: none, metrics: [] })
    (memory.fill (i32.const 256) (i32.const 0) (i32.const 32))
    (i32.const 256))

  (func (export "rollout:plugin/grader@0.1.0#grade")
    (param $has_label i32) (param $label i32) (param $label_length i32) (param $samples i32) (param $count i32)
    (result i32)
    (memory.fill (i32.const 256) (i32.const 0) (i32.const 64))
    (if (i32.eqz (local.get $count)) (then (return (i32.const 256))))
    ;; ok([verdict]), with the verdict at 272
    (i32.store (i32.const 260) (i32.const 272))
    (i32.store (i32.const 264) (i32.const 1))
    (i32.store (i32.const 272) (i32.load (local.get $samples)))
    (i32.store (i32.const 276) (i32.load offset=4 (local.get $samples)))
    (i32.store8 (i32.const 280) (i32.const 1))
    (f64.store (i32.const 288)
      (f64.convert_i32_u
        (i32.and (local.get $has_label) (i32.gt_u (i32.load offset=12 (local.get $samples)) (i32.const 1)))))
    (i32.const 256))
)
