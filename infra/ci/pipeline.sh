#!/usr/bin/env bash
# Bivouac in continuous integration, for any repository that holds campaign specs. GitHub's action
# .github/actions/bivouac runs this, and so may any other CI after infra/ci/install.sh.
#
#   pipeline.sh preview   what the changed specs would do to AWS, with cost and losses, as one comment
#   pipeline.sh down      ends the campaigns of a branch that is dead: those that only its specs name
#   pipeline.sh drift     what somebody has changed by hand in what stands; fails if there is anything
#
# In: credentials of one AWS account (specs of other accounts are passed over).
# SPECS     files, one a line. Else preview takes the YAML files that differ from BASE_SHA, the others all that git tracks.
# BASE_SHA  preview: the commit before the change.
# HEAD_SHA  down: the dead branch's last commit; HEAD is the branch that goes on.
# COMMENT   preview: where the comment is written, bivouac-preview.md. With GH_TOKEN, GITHUB_REPOSITORY and PULL_REQUEST
#           `gh` puts it on the pull request and replaces what an earlier run said there.
# Exit code: 0; preview 64 when a spec must not be merged; drift 2; else that of what failed.
set -uo pipefail
readonly MARK="<!-- bivouac preview -->" MOST=60000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Names as they are: git quotes those beyond ASCII, and a quoted one is no file.
git() { command git -c core.quotePath=false "$@"; }
account=$(aws sts get-caller-identity --query Account --output text) || exit 70

# Of a spec's first level; nothing for a value of another form, so that no name is taken for a shorter one.
field() { sed -nE "s/^$2: *[\"']?([A-Za-z0-9-]+)[\"']?[[:space:]]*(#.*)?\$/\1/p" "$1" | head -n 1; }
is_ours() { [[ -f $1 && $(field "$1" target) == aws && $(field "$1" account) == "$account" ]]; }
# -I: nothing is imported from the repository that is looked at.
fact() { python3 -I -c "import json, sys; seen = json.load(open(sys.argv[1])); $2" "$1"; }
specs() {  # $1: the commit before the change, if only what it changes counts
  if [[ -n ${SPECS:-} ]]; then printf '%s\n' "$SPECS"
  elif [[ -n ${1:-} ]]; then git diff --name-only --diff-filter=d "$1...HEAD" -- '*.yaml' '*.yml'
  else git ls-files -- '*.yaml' '*.yml'; fi
}

preview() {
  local worst=0 spec code all parts=()
  all=$(specs "${BASE_SHA:-}") || return 70
  while IFS= read -r spec; do is_ours "$spec" && parts+=("$spec"); done <<< "$all"
  local comment=${COMMENT:-bivouac-preview.md}
  echo "$MARK" > "$comment"
  if [[ ${#parts[@]} == 0 ]]; then
    echo "no spec of account $account has changed" | tee -a "$comment"
    # What an earlier run said there holds no more.
    post_or_fail "$comment" only-replace
    return
  fi
  for spec in "${parts[@]}"; do
    local options=(--markdown --no-cluster)
    [[ -n ${BASE_SHA:-} ]] && git show "$BASE_SHA:$spec" > "$work/before.yaml" 2> /dev/null \
      && options+=(--before "$work/before.yaml")
    echo "::group::preview $spec"
    bivouac preview "$spec" "${options[@]}" > "$work/one.md"
    code=$?
    cat "$work/one.md"
    echo "::endgroup::"
    if [[ $code != 0 && $code != 2 ]]; then
      echo "::error file=$spec::bivouac preview ended with $code"
      # What must not be merged is said of the whole, unless a preview broke down, which may hide the same.
      [[ $worst == 0 || $code != 64 ]] && worst=$code
    fi
    echo "" >> "$comment"
    echo "**\`$spec\`** (exit code $code)" >> "$comment"
    echo "" >> "$comment"
    # Findings, losses and costs stand first, so that a cut takes the lists of resources.
    grep -vxF "$MARK" "$work/one.md" | cut_at $((MOST / ${#parts[@]})) >> "$comment"
  done
  post_or_fail "$comment" || { [[ $worst == 0 ]] && worst=70; }
  return "$worst"
}

post_or_fail() {  # the file; `only-replace`: nothing is said where nothing was
  [[ -z ${PULL_REQUEST:-} || -z ${GH_TOKEN:-} ]] || post "$@" || { echo "::error::the comment could not be written"; return 70; }
}

cut_at() {
  python3 -I -c 'import sys; text, most = sys.stdin.read(), int(sys.argv[1])
if len(text) > most: text = text[:most].rpartition("\n")[0] + "\n\n_Cut here: the log of the run has all of it._\n"
sys.stdout.write(text)' "$1"
}

post() {
  # Ours is found by its mark: `gh pr comment --edit-last` takes the last comment of the same user, and other workflows
  # comment as github-actions too.
  local all="repos/$GITHUB_REPOSITORY/issues" old
  old=$(gh api --paginate "$all/$PULL_REQUEST/comments" --jq ".[] | select(.body | startswith(\"$MARK\")) | .id") || return 1
  if [[ -n $old ]]; then gh api -X PATCH "$all/comments/${old%%$'\n'*}" -F "body=@$1" > /dev/null
  elif [[ ${2:-} != only-replace ]]; then gh pr comment "$PULL_REQUEST" --repo "$GITHUB_REPOSITORY" --body-file "$1" > /dev/null; fi
}

down() {
  local spec name region all worst=0 kept=" "
  git cat-file -e "${HEAD_SHA:?the last commit of the dead branch}^{commit}" 2> /dev/null \
    || git fetch --quiet origin "$HEAD_SHA" || return 70
  all=$(git ls-files -- '*.yaml' '*.yml') || return 70
  while IFS= read -r spec; do [[ -f $spec ]] && kept+="$(field "$spec" campaign) "; done <<< "$all"
  all=${SPECS:-$(git ls-tree -r --name-only "$HEAD_SHA")} || return 70
  while IFS= read -r spec; do
    [[ $spec == *.yaml || $spec == *.yml ]] || continue
    git show "$HEAD_SHA:$spec" > "$work/dead.yaml" 2> /dev/null && is_ours "$work/dead.yaml" || continue
    name=$(field "$work/dead.yaml" campaign) region=$(field "$work/dead.yaml" region)
    [[ -z $name || $kept == *" $name "* ]] && continue
    bivouac list --region "$region" --json > "$work/list.json" || { worst=70; continue; }
    [[ $(fact "$work/list.json" "print(any(one['campaign'] == '$name' and one['target'] == 'aws' \
and one['stage'] != 'ended' for one in seen['campaigns']))") == False ]] && continue
    # A name may be that of somebody else's campaign: only what was begun with this very spec is this branch's.
    bivouac preview "$work/dead.yaml" --no-cluster --json > "$work/seen.json"
    if [[ $(fact "$work/seen.json" "print('stacks' in seen and not any( \
one['rule'] == 'spec_of_a_campaign_that_has_begun' for one in seen['findings']))" 2> /dev/null) != True ]]; then
      cat "$work/seen.json"
      echo "::error::campaign $name stands and is not proven to be this branch's, by $spec: it stays, and bills"
      worst=70
      continue
    fi
    echo "::group::bivouac down $name"
    bivouac down "$name" --region "$region" --yes || { worst=$?; echo "::error::campaign $name still stands"; }
    echo "::endgroup::"
  done <<< "$all"
  return "$worst"
}

drift() {
  local spec code all worst=0 found
  all=$(specs) || return 70
  while IFS= read -r spec; do
    is_ours "$spec" || continue
    bivouac preview "$spec" --no-cluster --json > "$work/seen.json"
    code=$?
    if ! found=$(fact "$work/seen.json" "print('\n'.join(f\"- {one['resource']} was {one['verb']} by hand: \
{one['consequence'] or 'see the log'}\" for stack in seen['stacks'] for one in stack['drifted']))" 2> /dev/null); then
      cat "$work/seen.json"
      # 64: the spec of a campaign that has ended, or one that is wrong; anything else is that nobody could look.
      if [[ $code == 64 ]]; then echo "::warning file=$spec::not looked at: it cannot be previewed"
      else echo "::error file=$spec::could not look: bivouac preview ended with $code"; worst=70; fi
    elif [[ -n $found ]]; then
      cat "$work/seen.json"
      echo "::error file=$spec::somebody has changed what stands"
      printf '%s\n' "**\`$spec\`**" "$found" "" | tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}"
      [[ $worst == 0 ]] && worst=2
    fi
  done <<< "$all"
  return "$worst"
}

case ${1:-} in
  preview | down | drift) "$1" ;;
  *) echo "seen: ${1:-nothing}; cure: pipeline.sh preview, down or drift" >&2; exit 64 ;;
esac
