"""The methods that R can call: a fixed list.

The first parameter of a method is the `Session` with R's objects. The others are R's named
arguments, converted according to their annotations (`Service.convert_arguments`) or by convert.py.
PyTorch is imported lazily, by the first method that needs it.
"""

from collections.abc import Callable

from r_bridge.methods import (
    cached,
    chats,
    embeddings,
    encoders,
    interventions,
    jobs,
    labels,
    machine,
    models,
    pairs,
    results,
    runs,
    serving,
    text,
    tokenizers,
    translations,
    weights,
    words,
)

_LIST: list[Callable[..., object]] = [
    machine.hello, machine.nothing, machine.warm_up, machine.devices, machine.doctor,
    machine.require_extra,
    models.from_pretrained, models.adapter, models.from_config, models.fresh, models.save_pretrained,
    models.new_adapter, models.adapter_weights, models.save_adapter,
    models.save_torchscript, models.forward, models.train, models.to, models.parameters, models.parameter,
    weights.check_state_dict, weights.new_state_dict, weights.add_weight, weights.prepare_state_dict,
    weights.load_state_dict,
    text.generate, text.next_tokens, text.score, text.perplexity,
    translations.translate, translations.summarize,
    words.word_logprobs, words.target_logprobs, words.vocabulary, words.logprob_matrix,
    pairs.read_pairs, pairs.pair_logprobs, pairs.suite_results, pairs.pair_accuracies,
    embeddings.embed, embeddings.word_embeddings, embeddings.attention_weights, embeddings.logit_lens,
    embeddings.tuned_lens,
    encoders.masked_tokens, encoders.masked_logprobs, encoders.pseudo_logprobs, encoders.classify,
    encoders.classify_tokens, encoders.answer_questions, encoders.rerank,
    labels.annotate, labels.decide, labels.calibrate, labels.label_agreement, labels.choose_for_coding,
    labels.corrected_estimate,
    interventions.activations, interventions.intervene, interventions.direction, interventions.probe,
    interventions.patching, interventions.attribution, interventions.head_scores,
    chats.chat_template, chats.has_chat_template, chats.apply_chat_template, chats.reply,
    tokenizers.tokenizer_from_pretrained, tokenizers.tokenizer_from_file, tokenizers.save_tokenizer,
    tokenizers.tokenizer_from_json, tokenizers.train_tokenizer, tokenizers.padding_token,
    tokenizers.encode_batch, tokenizers.decode_batch,
    tokenizers.id_to_token, tokenizers.token_to_id, tokenizers.vocab, tokenizers.vocab_size,
    results.open_results, results.append_results, results.truncate_results, results.close_results,
    results.model_fingerprint, results.tokenizer_fingerprint,
    jobs.replay, jobs.run_job,
    runs.train_model, runs.train_on_examples, runs.resume_training, runs.read_run,
    serving.serve, serving.stop_serving,
    cached.list_models, cached.download, cached.plan_deletion, cached.delete_cached,
]  # fmt: skip
METHODS = {function.__name__: function for function in _LIST}
