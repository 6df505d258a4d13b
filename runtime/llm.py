"""The offline API: vLLM's ``LLM`` on a compiled engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from deepinfer_gen.runtime.checkpoint_config import check_config
from deepinfer_gen.runtime.conversation import Message, parse_conversations
from deepinfer_gen.runtime.engine_args import check_engine_arguments, refuse_unused
from deepinfer_gen.runtime.folders import checkpoint_folder, engine_folder, read_plan
from deepinfer_gen.runtime.generation_config import default_sampling_params
from deepinfer_gen.runtime.interrupts import deferred_interrupt
from deepinfer_gen.runtime.logs import configure_logging
from deepinfer_gen.runtime.mechanisms import refuse_unbuilt
from deepinfer_gen.runtime.metrics import Metric
from deepinfer_gen.runtime.not_offered import NotOffered
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.profiler import StepProfiler, profile_folder
from deepinfer_gen.runtime.progress import ProgressBar, UseTqdm
from deepinfer_gen.runtime.prompts import Prompt, pair_params, parse_prompts
from deepinfer_gen.runtime.random_numbers import request_seeds
from deepinfer_gen.runtime.request import Request
from deepinfer_gen.runtime.request_factory import make_request
from deepinfer_gen.runtime.sampling_params import ParameterError, RequestOutputKind, SamplingParams
from deepinfer_gen.runtime.tokenizer import Tokenizer

Params = SamplingParams | Sequence[SamplingParams]


class LLM(NotOffered):
    """Generates text offline with the engine in a generated folder.

    ``model`` is a checkpoint folder; None takes the one that ships with the engine's preset. ``engine`` is a generated
    folder, or its bare name below ``./generated``. The other arguments have vLLM's names; one that contradicts the
    compiled Plan raises ``ParameterError``, an unknown one ``TypeError``. Raises ``InputError`` for an engine or a
    checkpoint that cannot be used.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        engine: str | Path = "generated/tiny-cpu",
        tokenizer: str | Path | None = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        quantization: str | None = None,
        revision: str | None = None,
        chat_template: str | Path | None = None,
        seed: int = 0,
        gpu_memory_utilization: float = 0.92,
        enforce_eager: bool = False,
        kv_cache_memory_bytes: int | None = None,
        hf_overrides: Any = None,
        compilation_config: Any = None,
        structured_outputs_config: Any = None,
        profiler_config: Mapping[str, Any] | None = None,
        spec_method: str | None = None,
        spec_model: str | None = None,
        spec_tokens: int | None = None,
        disable_log_stats: bool = True,
        trace: TextIO | None = None,
        **kwargs: Any,
    ) -> None:
        configure_logging()
        folder = engine_folder(engine)
        plan = read_plan(folder)
        refuse_unbuilt(plan.name, plan.values)
        check_engine_arguments(
            {
                "tokenizer_mode": tokenizer_mode,
                "tensor_parallel_size": tensor_parallel_size,
                "dtype": dtype,
                "quantization": quantization,
                "revision": revision,
                "gpu_memory_utilization": gpu_memory_utilization,
                "enforce_eager": enforce_eager,
                "kv_cache_memory_bytes": kv_cache_memory_bytes,
                "hf_overrides": hf_overrides,
                "compilation_config": compilation_config,
                "structured_outputs_config": structured_outputs_config,
                "spec_method": spec_method,
                "spec_model": spec_model,
                "spec_tokens": spec_tokens,
                **kwargs,
            },
            plan,
        )
        traces = profile_folder(profiler_config)
        checkpoint = checkpoint_folder(model, plan.values["model.preset"]["value"])
        check_config(checkpoint, plan.values)
        self._tokenizer = None if skip_tokenizer_init else Tokenizer(Path(tokenizer) if tokenizer else checkpoint)
        self._chat_template = (
            chat_template.read_text(encoding="utf-8") if isinstance(chat_template, Path) else chat_template
        )
        self._default_params = default_sampling_params(checkpoint)
        self._seed = seed
        self._max_model_len: int = plan.values["limits.max_model_len"]["value"]
        self._ranks: int = plan.values["parallel.ranks"]["value"]
        self._batch_invariant: bool = plan.values["determinism.batch_invariant"]["value"]
        from deepinfer_gen.runtime.assembly import assemble

        built = assemble(folder, plan, checkpoint, self._tokenizer, log_stats=not disable_log_stats, trace=trace)
        self.llm_engine = built.engine
        self._device = built.device
        self._model = built.model
        self._vocab_size = built.vocab_size
        self._profiler = StepProfiler(built.device, traces)
        self._next_id = 1
        self._finished: dict[int, RequestOutput] = {}
        self._streams: dict[int, deque[RequestOutput]] = {}
        self._closed = False

    @classmethod
    def from_spec(cls, path: str | Path, model: str | Path | None = None, **kwargs: Any) -> LLM:
        """Compile a spec (a file or a shipped name) into ``./generated`` and load the engine; repeated, it is quick."""
        from deepinfer_gen.codegen.build import build_folder
        from deepinfer_gen.codegen.render import render
        from deepinfer_gen.codegen.sources import plan_spec
        from deepinfer_gen.codegen.write import write_folder

        plan = plan_spec(str(path))
        folder = write_folder(render(plan), Path("generated") / plan.name).path
        build_folder(folder)
        return cls(model, engine=folder, **kwargs)

    # Generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        priority: None = None,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; the outputs come in the order of the prompts.

        Raises ``ParameterError`` for a prompt or parameter that cannot be used; then nothing was generated. Ctrl-C
        ends the step under way, aborts all requests and raises ``KeyboardInterrupt``.
        """
        refuse_unused(
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        ids = self._add(prompts, sampling_params)
        self._run(ids, use_tqdm)
        return [self._finished.pop(i) for i in ids]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        priority: None = None,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto", "string"] = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of each conversation, with the checkpoint's chat template.

        Templates get the text of a message, never a list of parts.
        """
        if chat_template_content_format not in ("auto", "string"):
            raise ParameterError(
                "chat templates get text in this engine.",
                parameter="chat_template_content_format",
                value=chat_template_content_format,
            )
        tokenizer = self.get_tokenizer()
        prompts: list[Prompt] = []
        for conversation in parse_conversations(messages):
            text = tokenizer.apply_chat_template(
                conversation,
                chat_template=chat_template or self._chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        lora_request: None = None,
        priority: None = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[str]:
        """Queue prompts without running them; returns their request ids. ``use_tqdm`` has nothing to show here."""
        refuse_unused(
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        return [str(i) for i in self._add(prompts, sampling_params)]

    def wait_for_completion(
        self, output_type: type[RequestOutput] | None = None, *, use_tqdm: UseTqdm = True
    ) -> list[RequestOutput]:
        """Run until everything queued has ended; returns the outputs not returned before, by request id."""
        if output_type not in (None, RequestOutput):
            raise ParameterError("every output is a RequestOutput.", parameter="output_type", value=output_type)
        self._run(self.llm_engine.unfinished_requests(), use_tqdm)
        return [self._finished.pop(i) for i in sorted(self._finished)]

    def stream(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params | None = None
    ) -> Iterator[RequestOutput]:
        """Generate and yield each request's new text and tokens as they come.

        Other calls, other streams among them, may run the engine meanwhile; what they produce for this one waits here.
        """
        ids = self._add(prompts, sampling_params, kind=RequestOutputKind.DELTA)
        pieces: deque[RequestOutput] = deque()
        self._streams.update(dict.fromkeys(ids, pieces))
        try:
            while pieces or self.llm_engine.is_unfinished(ids):
                while pieces:
                    yield pieces.popleft()
                if self.llm_engine.is_unfinished(ids):
                    self._step()
        finally:
            for request_id in ids:
                del self._streams[request_id]
            self.llm_engine.abort_request(ids)

    # Inspection and control

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises ``RuntimeError`` when the engine was made without one."""
        if self._tokenizer is None:
            raise RuntimeError("this LLM was made with skip_tokenizer_init=True")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used when a call gives none: vLLM's defaults with the checkpoint's ``generation_config.json``."""
        return self._default_params.clone()

    def get_metrics(self) -> list[Metric]:
        """A snapshot of all metrics."""
        return self.llm_engine.stats.metrics(self.llm_engine.load())

    def get_world_size(self, include_dp: bool = True) -> int:
        """Ranks of the compiled engine, or of one data-parallel group."""
        return self._ranks if include_dp else 1

    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Begin a torch profile of the engine's steps; ``stop_profile`` writes a Chrome trace."""
        self._profiler.start(profile_prefix, delay_iterations=delay_iterations, max_iterations=max_iterations)

    def stop_profile(self) -> None:
        """End the profile and write it."""
        self._profiler.stop()

    def shutdown(self) -> None:
        """Stop the engine and release the device; further calls raise. Safe to call again."""
        if not self._closed:
            self._profiler.stop()
            self._device.close()
            self._closed = True

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return repr(self._model)

    # Internals

    def _add(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None,
        kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY,
    ) -> list[int]:
        if self._closed:
            raise RuntimeError("this LLM was shut down")
        parsed = parse_prompts(prompts, self._tokenizer, self._vocab_size)
        paired = pair_params(self._default_params if sampling_params is None else sampling_params, len(parsed))
        params = [one.clone(output_kind=kind) for one in paired]
        seeds = request_seeds(
            self._seed, [p.seed for p in params], self._next_id, batch_invariant=self._batch_invariant
        )
        requests = [
            make_request(self._next_id + index, *each, self._tokenizer, self._vocab_size)
            for index, each in enumerate(zip(parsed, params, seeds, strict=True))
        ]
        added: list[int] = []
        try:
            for index, request in enumerate(requests):
                self._queue(index, request)
                added.append(request.number)
        except BaseException:
            self.llm_engine.abort_request(added)
            raise
        self._next_id += len(requests)
        return added

    def _queue(self, index: int, request: Request) -> None:
        room = self._max_model_len - request.prompt_length
        if room < 1:
            raise ParameterError(
                f"prompt {index} has {request.prompt_length} tokens, "
                f"which leaves no room in max_model_len={self._max_model_len}.",
                parameter="prompts",
                value=request.prompt_length,
            )
        asked = request.params.max_tokens
        try:
            self.llm_engine.add_request(request, max_tokens=room if asked is None else min(asked, room))
        except ValueError as fault:
            raise ParameterError(
                f"prompt {index}: {fault}", parameter="prompts", value=request.prompt_length
            ) from fault

    def _run(self, ids: Sequence[int], use_tqdm: UseTqdm) -> None:
        """Step until the requests ``ids`` have ended; outputs of others that end meanwhile are kept."""
        waiting = set(ids) - set(self._finished)
        bar = ProgressBar(len(waiting), use_tqdm)
        try:
            while self.llm_engine.is_unfinished(waiting):
                for output in self._step():
                    if output.finished and int(output.request_id) in waiting:
                        waiting.remove(int(output.request_id))
                        bar.finished(output)
        finally:
            bar.close()
            self.llm_engine.abort_request(waiting)

    def _step(self) -> list[RequestOutput]:
        """Run one engine step and hand its outputs to those who wait for them; also returns them."""
        with deferred_interrupt() as interrupted:
            outputs = self.llm_engine.step()
            self._profiler.on_step()
            for output in outputs:
                if int(output.request_id) in self._streams:
                    self._streams[int(output.request_id)].append(output)
                elif output.finished:
                    self._finished[int(output.request_id)] = output
            if interrupted():
                self.llm_engine.abort_all()
                raise KeyboardInterrupt
        return outputs
