#!/usr/bin/env bash
# Previews every campaign spec of this account and puts the result of each on the pull request.
# In: GH_TOKEN, GITHUB_REPOSITORY, PULL_REQUEST, BASE_SHA (the commit before the change), SPECS (files, one a line).
# Exit code: 0, or 64 when a preview finds an error, or that of a preview that broke down.
set -uo pipefail
worst=0
account=$(aws sts get-caller-identity --query Account --output text) || exit 70
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
comment="$work/comment.md"
echo "<!-- bivouac preview -->" > "$comment"
while IFS= read -r spec; do
  [[ -f "$spec" ]] && grep -qE '^target: *aws' "$spec" || continue
  # Credentials reach one account: a spec of another one is not this run's to judge.
  grep -qE "^account: *[\"']?$account" "$spec" || continue
  options=(--markdown --no-cluster)
  before="$work/before.yaml"
  git show "$BASE_SHA:$spec" > "$before" 2>/dev/null && options+=(--before "$before")
  echo "::group::preview $spec"
  bivouac preview "$spec" "${options[@]}" > "$work/one.md"
  code=$?
  cat "$work/one.md"
  echo "::endgroup::"
  if [[ $code != 0 && $code != 2 ]]; then
    echo "::error file=$spec::bivouac preview ended with $code"
    worst=$code
  fi
  { echo; echo "**\`$spec\`** (exit code $code)"; echo; sed '/^<!-- bivouac preview -->$/d' "$work/one.md"; } >> "$comment"
done <<< "$SPECS"
if [[ $(wc -l < "$comment") -gt 1 && -n "${PULL_REQUEST:-}" ]]; then
  head -c 65000 "$comment" > "$work/cut.md"
  # One comment per pull request: the newest run replaces what the last one said.
  old=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments" \
    --jq '.[] | select(.body | startswith("<!-- bivouac preview -->")) | .id' | head -n 1)
  if [[ -n "$old" ]]; then
    gh api -X PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$old" -F "body=@$work/cut.md" > /dev/null
  else
    gh api -X POST "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments" -F "body=@$work/cut.md" > /dev/null
  fi || { echo "::error::the comment could not be written"; [[ $worst == 0 ]] && worst=70; }
fi
exit $worst
