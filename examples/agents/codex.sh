#!/bin/sh
# OpenAI's Codex CLI (`npm install -g @openai/codex`) as a program under training: docs/environments/agent.md.
#
# Its settings and its log are in the episode's folder. Searching the web is off, because the service would do that. The
# commands that it runs are not isolated.
export CODEX_HOME="$PWD/.codex"
mkdir "$CODEX_HOME"
cat > "$CODEX_HOME/config.toml" <<END
model = "policy"
model_provider = "textenvs"
web_search = "disabled"
allow_login_shell = false
[features]
shell_snapshot = false
[analytics]
enabled = false
[model_providers.textenvs]
name = "textenvs"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
node -p 'JSON.parse(process.env.TEXTENVS_TASK).question' |
    codex exec --skip-git-repo-check --sandbox danger-full-access -
