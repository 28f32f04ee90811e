"""By which names do clients tell their sessions? Headers before fields of a body, one client's own before common ones.

A row is the client, the header or field (as `body: NAME`) that names the session, the ones that name the sub-agent and
the session above it, and the source. With a name for the sub-agent, the session is the root; if there is one for the
session above, too, only requests that have it are a sub-agent's. With a name for the session above alone, the session's
own name is the sub-agent's in requests that have it.
"""

from __future__ import annotations

from typing import Final

Row = tuple[str, str, str, str, str]

USER_ID: Final = "metadata.user_id"
PARENT_IN_USER_ID: Final = "metadata.user_id: parent_session_id"
PREVIOUS: Final = "previous_response_id"
LAST: Final = b"x-dynamo-session-final"  # `true` in the last request of a session
KNOWN: Final[tuple[Row, ...]] = (
    ("Claude Code", "x-claude-code-session-id", "x-claude-code-agent-id", "", "coder/aibridge pull 241"),
    ("Codex", "session-id", "thread-id", "x-codex-parent-thread-id", "openai/codex"),
    ("Codex, earlier", "session_id", "", "x-codex-parent-thread-id", "openai/codex"),
    ("Codex, threads alone", "thread-id", "", "x-codex-parent-thread-id", "openai/codex"),
    ("OpenCode", "x-session-affinity", "", "x-parent-session-id", "sst/opencode session/llm.ts"),
    ("Dynamo's clients", "x-dynamo-session-id", "", "x-dynamo-parent-session-id", "ai-dynamo/dynamo"),
    ("llm-d, inference-perf, aiperf", "x-session-id", "", "x-parent-session-id", "ai-dynamo/aiperf"),
    ("vLLM 0.33", "body: session_id", "", "", "vllm-project/vllm"),
    ("OpenAI", "body: conversation", "", "", "platform.openai.com, responses"),
    ("OpenAI", f"body: {PREVIOUS}", "", "", "platform.openai.com, responses"),
    ("Claude Code, earlier", f"body: {USER_ID}", "", f"body: {PARENT_IN_USER_ID}", "ding113/claude-code-hub pull 939"),
    ("Codex, OpenAI", "body: prompt_cache_key", "", "", "platform.openai.com, prompt caching"),
)
BODY: Final = "body: "
HEADERS: Final = frozenset([row[1].encode() for row in KNOWN if not row[1].startswith(BODY)])
